"""Results to show and to write."""

from __future__ import annotations

from lowbit.tipc import ChainResult, Check, Status, StepResult


def step(name: str, status: Status = Status.PASSED, **more) -> StepResult:
    values = {"kind": "train", "command": f"python {name}.py ", "log": f"{name}.log", "exit_code": 0}
    return StepResult(name=name, status=status, **values | more)


def chain(*steps: StepResult, **more) -> ChainResult:
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
