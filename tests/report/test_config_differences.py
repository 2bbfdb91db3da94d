"""Settings in which runs differ."""

from __future__ import annotations

from pathlib import Path

from lowbit.report import Run
from lowbit.report.config_differences import config_differences


def _run(**config) -> Run:
    return Run(path=Path("run"), name="run", config=config)


def test_only_what_differs_is_named():
    one = _run(Global={"epochs": 2, "seed": 1, "output_dir": "a"}, AMP=None, Recipe="w4a4.yaml")
    other = _run(
        Global={"epochs": 3, "seed": 1, "output_dir": "b"}, AMP={"level": "O1"}, Recipe={"rules": [1, 2]}
    )
    found = config_differences([one, other])
    assert list(found) == ["Global.epochs", "Recipe", "AMP.level"]
    assert found["Global.epochs"] == ["2", "3"]
    assert found["AMP.level"] == ["–", "O1"]  # noqa: RUF001
    assert found["Recipe"] == ["w4a4.yaml", '2 rules: {"rules": [1, 2]}']
    assert config_differences([one, one]) == {}
