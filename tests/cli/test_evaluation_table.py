from __future__ import annotations

import json
import shutil

from lowbit.config import validate
from lowbit.training.loop import train
from tests.cli.conftest import tiny_values, write_config


def rows(result) -> list[dict]:
    assert result.code == 0, result
    return json.loads(result.out.splitlines()[-1])


def test_six_tests_and_the_accuracy_as_quantized(run, low_precision):
    result = run("lowbit", "eval", low_precision, "--table")
    assert result.code == 0, result
    lines = result.out.splitlines()
    assert "best.lowbit: 16 images" in lines[0]
    assert lines[1] == "batch norm refreshed on 2 training batches (all there are; 50 were asked for)"
    assert [line.split("  ")[0].strip() for line in lines[2:9]] == [
        *("tested as", "w4a4", "w4a4", "w4", "w4", "fp", "fp"),
    ]
    plain = run("lowbit", "eval", low_precision).out.splitlines()[-1]
    assert lines[-1] == plain and plain.startswith(" * Acc@1")


def test_the_figures_are_those_of_evaluation(run, low_precision):
    found = rows(run("lowbit", "eval", low_precision, "--table", "--json"))
    assert [(row["how"], row["refreshed"]) for row in found] == [
        (how, refreshed) for how in ("quantized", "weights", "full") for refreshed in (False, True)
    ]
    plain = json.loads(run("lowbit", "eval", low_precision, "--json").out.splitlines()[-1])
    assert found[0]["metrics"] == {name: plain[name] for name in found[0]["metrics"]}
    losses = [row["metrics"]["loss"] for row in found]
    assert len(set(losses)) == 6  # six different models, in effect
    again = rows(run("lowbit", "eval", low_precision, "--table", "--json"))
    assert again == found


def test_without_batches_for_batch_norm_there_are_three_tests(run, low_precision, tmp_path):
    all_rows = rows(run("lowbit", "eval", low_precision, "--table", "--json"))
    found = rows(run("lowbit", "eval", low_precision, "--table", "--bn-batches=0", "--json"))
    assert found == all_rows[::2]
    result = run("lowbit", "eval", low_precision, "--table", "--bn-batches=1")
    assert "batch norm refreshed on 1 training batches\n" in result.out


def test_other_images(run, low_precision, lite, tmp_path):
    copied = tmp_path / "copied"
    shutil.copytree(lite, copied)
    batches = ("--batch-size=8", "--data-path", copied)
    found = rows(run("lowbit", "eval", low_precision, "--table", *batches, "--json"))
    assert found == rows(run("lowbit", "eval", low_precision, "--table", "--json"))


def test_missing_training_images_are_said_to_be_for_batch_norm(run, low_precision, lite, tmp_path):
    values = tiny_values(lite, tmp_path / "run")
    values["DataLoader"]["Train"]["dataset"]["path"] = str(tmp_path / "nowhere")
    gone = write_config(tmp_path / "gone.yaml", values)
    message = run("lowbit", "eval", low_precision, "-c", gone, "--table").error
    assert message.startswith("batch norm is refreshed on training images: ")
    assert "nowhere" in message and message.endswith("leave these rows out with --bn-batches 0")
    del values["DataLoader"]["Train"]
    none = write_config(tmp_path / "none.yaml", values)
    assert "has no DataLoader.Train" in run("lowbit", "eval", low_precision, "-c", none, "--table").error
    assert (
        len(rows(run("lowbit", "eval", low_precision, "-c", none, "--table", "--bn-batches=0", "--json")))
        == 3
    )


def test_what_can_be_tested_in_one_way_only(run, trained):
    assert "is not quantized: there is one way only" in run("lowbit", "eval", trained, "--table").error
    assert "is exported" in run("lowbit", "eval", trained / "export", "--table").error
    assert "no effect without --table" in run("lowbit", "eval", trained, "--bn-batches=3").error


def test_qat_has_the_table_too(run, lite, tmp_path):
    values = tiny_values(lite, tmp_path / "run")
    folder = train(validate(values | {"Recipe": {"weight_bits": 4, "activation_bits": 8}}, {}, "qat"))
    found = rows(run("lowbit", "eval", folder, "--table", "--json"))
    assert [row["name"] for row in found[::2]] == ["w4a8", "w4", "fp"]
