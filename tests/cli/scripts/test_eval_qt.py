from __future__ import annotations

import json

import pytest

from tests.cli.conftest import tiny_values, write_config
from tests.cli.test_train import ACCURACY


def rows(result) -> list[dict]:
    assert result.code == 0, result
    return json.loads(result.out.splitlines()[-1])


def test_it_is_the_table_of_lowbit_eval(run, low_precision):
    expected = run("lowbit", "eval", low_precision, "--table")
    found = run("eval_qt.py", low_precision)
    assert found == expected and found.code == 0, found
    assert ACCURACY.match(found.out.splitlines()[-1])


def test_weights_are_found_as_in_the_original_and_in_a_chain_test(run, low_precision, lite, tmp_path):
    """By the config's Global.pretrained_model; by --pretrained alone, or with a config."""
    weights = low_precision / "checkpoints/best.pdparams"
    config = write_config(tmp_path / "c.yaml", tiny_values(lite, tmp_path / "run"))
    expected = rows(run("eval_qt.py", low_precision, "--json"))
    for arguments in (
        ("-c", config, "-o", f"Global.pretrained_model={weights}"),
        (f"--pretrained={weights}", "--device=cpu"),
        ("-c", config, "--pretrained", weights),
    ):
        assert rows(run("eval_qt.py", *arguments, "--json")) == expected, arguments
    found = rows(run("eval_qt.py", f"--pretrained={weights}", f"--data-path={lite}", "--json"))
    for row, other in zip(found, expected, strict=True):  # in batches of another size
        assert row["metrics"] == pytest.approx(other["metrics"], rel=1e-5)


@pytest.mark.parametrize("with_config", [True, False])
def test_without_weights_it_says_what_to_give(run, config_file, with_config):
    result = run("eval_qt.py", *(["-c", config_file] if with_config else []))
    assert result.error == "give a checkpoint (or run folder), or -c CONFIG with --pretrained WEIGHTS"
