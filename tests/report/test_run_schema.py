"""Files of a run folder that are not what lowbit wrote: one-line errors, in the report and the comparison."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowbit.analysis.analyze import Store
from lowbit.errors import LowbitError
from lowbit.report import config_differences, figures, make_page, open_runs, verdicts
from tests.support.fake_run import histograms, write_run

WRONG = [None, True, -3, 2.5, 1e301, "text", "\ud800", [], [[]], {}, {"a": 1}]
RANKED = {
    **{"name": "layers.0.conv", "bits": "W4A4", "only_loss": 0.1, "without_loss": 0.1, "only_top1": 0.9},
    **{"weight_sqnr": 20.0, "input_sqnr": None, "gradient_sqnr": 3.0, "gradient_histograms": {}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "run", layers=1, epochs=1)
    analysis = {"format": 3, "analyses": {"key": {"title": "best on 10 images", "ranking": [RANKED]}}}
    (folder / "analysis.json").write_text(json.dumps(analysis))
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "other", layers=1, epochs=1)


def show(*folders: Path) -> None:
    """What `lowbit report` and `lowbit compare` do with runs."""
    runs = open_runs(list(folders))
    for run in runs:
        figures(run)
    config_differences(runs)
    verdicts(runs)
    make_page(runs, [histograms(1)] * len(runs)).encode()


def places(value: Any, at: tuple = ()) -> Iterator[tuple]:
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*at, key))


def replaced(value: Any, at: tuple, new: Any) -> Any:
    if not at:
        return new
    value = copy.deepcopy(value)
    here = value
    for key in at[:-1]:
        here = here[key]
    here[at[-1]] = new
    return value


def removed(value: Any, at: tuple) -> Any:
    value = copy.deepcopy(value)
    here = value
    for key in at[:-1]:
        here = here[key]
    del here[at[-1]]
    return value


def damaged(value: Any) -> Iterator[Any]:
    """Every part of it as something else, and once left out."""
    for at in places(value):
        yield from (replaced(value, at, new) for new in WRONG)
        if at:
            yield removed(value, at)


def check(run: Path, other: Path) -> bool:
    """Whether the run is refused; then with one line that names it."""
    try:
        show(run, other)
    except LowbitError as error:
        assert "\n" not in str(error) and str(run) in str(error) and len(str(error)) < 2000, error
        return True
    return False


@pytest.mark.parametrize("name", ["plan.json", "verify.json", "run.json", "analysis.json", "config.yaml"])
def test_every_part_of_a_wrong_type_is_taken_or_refused(folder, other, name):
    file = folder / name
    before = file.read_text()
    load, dump = (yaml.safe_load, yaml.safe_dump) if name.endswith("yaml") else (json.loads, json.dumps)
    refused = 0
    try:
        for value in damaged(load(before)):
            file.write_text(dump(value))
            refused += check(folder, other)
    finally:
        file.write_text(before)
    assert refused >= 10
    show(folder, other)


def test_every_part_of_the_log_of_a_wrong_type_is_taken_or_refused(folder, other):
    file = folder / "metrics.jsonl"
    before = file.read_text()
    refused = 0
    try:
        for number, line in enumerate(lines := before.splitlines()):
            for value in damaged(json.loads(line)):
                changed = [*lines[:number], json.dumps(value), *lines[number + 1 :]]
                file.write_text("".join(f"{one}\n" for one in changed))
                refused += check(folder, other)
    finally:
        file.write_text(before)
    assert refused >= 50


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "metrics.jsonl",
            b'{"kind": "eval"}\n{"kind": 3}\n',
            r"metrics\.jsonl, line 2: kind: .*; remove the line",
        ),
        ("metrics.jsonl", b"\xff}\n", "cannot read .*invalid start byte"),
        ("metrics.jsonl", b'{"kind": "eval", "top1": NaN}\n', "line 1: NaN is not JSON"),
        ("plan.json", b'{"name": "conv"}', r"plan\.json: the file: .*valid list"),
        ("plan.json", b"[" * 100_000, "nested too deeply"),
        ("verify.json", b"9" * 5000, "cannot read .*verify"),
        ("verify.json", b'{"images": "many"}', r"verify\.json: images: .*valid integer"),
        ("run.json", b'"\\ud800"', "half a character"),
        ("config.yaml", b"- a", r"config\.yaml: the file: .*valid dictionary"),
        ("config.yaml", b"1: {2: 3}", r"config\.yaml: "),
        ("config.yaml", b"a: &a [*a]", "inside of itself"),
        ("config.yaml", b"a: !!set {b}", r"config\.yaml: a"),
    ],
)
def test_the_message_says_where(tmp_path, name, content, message):
    folder = write_run(tmp_path / "run", epochs=1)
    (folder / name).write_bytes(content)
    with pytest.raises(LowbitError, match=message) as caught:
        open_runs([folder])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["[]", '{"format": 3, "analyses": 3}', '{"format": 3, "analyses": {"a": 3}}', "["]
)
def test_a_wrong_analysis_is_an_error_when_it_is_continued(tmp_path, text):
    (tmp_path / "analysis.json").write_text(text)
    store = Store(tmp_path / "analysis.json", checkpoint="best.lowbit", digest="0", settings={})
    with pytest.raises(LowbitError, match=r"cannot read .* remove it to analyze again"):
        store.save(title="x")
