"""Chain test configs of both layouts, and a way to change lines of them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lowbit.tipc import ChainConfig, ChainResult, ChainStepResult, Check, Status, Step, read_config
from lowbit.tipc.judge import Expected, ModelReport
from lowbit.tipc.step_outputs import Snapshot, changed_files

CONFIGS = Path(__file__).parents[1] / "tipc/configs"
NAMES = ("norm", "pact", "amp", "fleet", "generic", "paddleclas")


def config_lines(name: str) -> list[str]:
    return (CONFIGS / f"{name}.txt").read_text("utf-8").splitlines()


def changed_text(name: str, lines: dict[int, str | None]) -> str:
    """A config with some lines replaced by their number; None takes a line away."""
    found = [lines.get(number, line) for number, line in enumerate(config_lines(name), 1)]
    return "\n".join(line for line in found if line is not None)


def step(name: str, status: Status = Status.PASSED, **more) -> ChainStepResult:
    values = {"kind": "train", "command": f"python {name}.py ", "log": f"{name}.log", "exit_code": 0}
    return ChainStepResult(name=name, status=status, **values | more)


def chain(*steps: ChainStepResult, **more) -> ChainResult:
    values = {"layout": 32, "model_name": "resnet18", "mode": "whole_infer", "output": "./out"}
    values |= {"config": "configs/c.txt", "root": "/repo", "started": "2026-01-02T03:04:05+00:00"}
    return ChainResult(steps=steps, **values | {"finished": True, "seconds": 12.3} | more)


FULL = chain(
    step(
        "a",
        checks=(Check("loss", True, "0.5"), Check("weights", None, "no .pdparams")),
        notes=("on the CPU",),
    ),
    step("b", Status.FAILED, reason="exit code 1: \x1b[31mboom\x00 <&>", exit_code=1, seconds=1.25),
    step("c", Status.SKIPPED, reason="needs card 0", exit_code=None),
    step("d", Status.NOT_RUN, reason="needs b,\n which failed", exit_code=None),
)


Change = Callable[..., ChainConfig]


@pytest.fixture
def change(tmp_path) -> Change:
    """Reads a config with changes: `change("norm", {4: "gpu_list:-1"})`."""

    def call(name: str, lines: dict[int, str | None] | None = None) -> ChainConfig:
        file = tmp_path / f"{name}.txt"
        file.write_text(changed_text(name, lines or {}), "utf-8")
        return read_config(file)

    return call


@pytest.fixture
def repo(tmp_path) -> Path:
    """The config of a repository whose scripts are stand-ins; its root is three folders up."""
    root = tmp_path / "repo"
    folder = root / "test_tipc/configs/stand_in"
    folder.mkdir(parents=True)
    shutil.copy(CONFIGS.parent / "stand_in.py", root)
    (root / "demo.jpg").write_bytes(b"")
    text = changed_text(
        "norm",
        {
            2: "model_name:stand_in",
            3: f"python:{sys.executable}",
            4: "gpu_list:-1",
            5: "use-gpu:null",
            14: "norm_train:stand_in.py train",
            17: "eval:stand_in.py eval",
            22: "norm_export:stand_in.py export",
            27: "inference:stand_in.py infer",
            28: "--use-gpu:False",
            31: "--img-path:./demo.jpg",
        },
    )
    file = folder / "train_infer_python.txt"
    file.write_text(text, "utf-8")
    return file


@pytest.fixture
def stand_in_model(monkeypatch) -> list[Check]:
    """Exported models are not opened: these are the checks, and class 1 with 0.7 is what was trained."""
    checks = [Check("loads", True, "a stand-in")]

    def find(root: Path, step: Step, before: Snapshot, run: object) -> ModelReport:
        if not changed_files(before, root / step.leaves):
            return ModelReport(checks=[Check("exported model", False, "none written")])
        return ModelReport(checks=checks, expected=[Expected("./demo.jpg", [0.2, 0.7, 0.1])], image_count=1)

    monkeypatch.setattr("lowbit.tipc.judge.check_export", find)
    return checks
