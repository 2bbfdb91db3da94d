"""A run folder as the report and the comparison read it: everything optional but its config."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowbit.config.yaml_file import read_yaml
from lowbit.errors import LowbitError
from lowbit.numerics import parse_grid
from lowbit.report import run_schema as schema

_FULL_BITS = {"full": 32, "bf16": 16, "fp16": 16}
ALONE = 0.1  # of the processor, used by other processes: with more, a speed is not shown
Points = list[tuple[float, float]]  # epoch and value


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run has left in its folder."""

    path: Path
    name: str
    config: dict[str, Any]
    record: dict[str, Any] = field(default_factory=dict)  # run.json: command, environment, version
    plan: list[dict[str, Any]] | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    verify: dict[str, Any] | None = None
    advice: dict[str, Any] | None = None
    analysis: dict[str, Any] | None = None

    def points(self, kind: str, key: str) -> Points:
        """A figure of the log by epoch, counted from 1; values that are not finite are omitted.

        run.points("eval", "top1")
        """
        return [
            (one.get("epoch", -1) + 1, one[key])
            for one in self.of_kind(kind)
            if isinstance(one.get(key), int | float) and abs(one[key]) < schema.LARGEST
        ]

    def speeds(self) -> Points:
        """Images a second by epoch, of the epochs in which other processes used little of the processor."""
        alone = {epoch for epoch, used in self.points("train", "other_processes") if used <= ALONE}
        return [point for point in self.points("train", "images_per_second") if point[0] in alone]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """The records of one kind, in their order."""
        return [one for one in self.metrics if one["kind"] == kind]

    def analyses(self) -> list[dict[str, Any]]:
        """What `lowbit analyze` has measured so far."""
        found = (self.analysis or {}).get("analyses", {}).values()
        return [one for one in found if "ranking" in one]

    @property
    def model_name(self) -> str:
        """The network's name."""
        return self.config.get("Arch", {}).get("name", "unknown")

    @property
    def precision(self) -> str:
        """What most layers are quantized to, such as W4A4 or W4A4G4; fp32 without a plan.

        >>> Run(path=Path("r"), name="r", config={}).precision
        'fp32'
        """
        quantized = [layer["plan"] for layer in self.plan or () if layer["quantized"]]
        if not quantized:
            return "fp32"
        words = [_precision_of(plan) for plan in quantized]
        return max(dict.fromkeys(words), key=words.count)

    @property
    def weight_bytes(self) -> int | None:
        """What all planned weights take, each at its bits; None without a plan."""
        if self.plan is None:
            return None
        return math.ceil(sum(math.prod(layer["shape"]) * weight_bits(layer) for layer in self.plan) / 8)

    @property
    def full_weight_bytes(self) -> int | None:
        """What the same weights take in fp32."""
        if self.plan is None:
            return None
        return 4 * sum(math.prod(layer["shape"]) for layer in self.plan)


def open_run(path: str | Path) -> Run:
    """The run of a folder; a LowbitError where there is none.

    >>> open_run(Path("runs/digits")).points("eval", "top1")[-1]  # doctest: +SKIP
    (6, 0.989)
    """
    path = Path(path)
    config = path / "config.yaml"
    if not os.path.isfile(config):
        raise LowbitError(
            f"{path} is no run folder (it has no config.yaml); give one that `lowbit train` wrote"
        )
    values, _ = read_yaml(config)
    for kind in (schema.JSON, schema.CONFIG):
        schema.check(values, kind, config, "it is not the config of a run")
    return Run(
        path=path,
        name=path.resolve().name,
        config=values,
        record=schema.read_json(path / "run.json", schema.RUN_RECORD) or {},
        plan=schema.read_json(path / "plan.json", schema.PLAN),
        metrics=_records(path / "metrics.jsonl"),
        verify=schema.read_json(path / "verify.json", schema.VERIFIED),
        advice=schema.read_json(path / "advice.json", schema.ADVISED),
        analysis=schema.read_json(path / "analysis.json", schema.ANALYSES),
    )


def open_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Several runs, under names that tell them apart: of folders with the same name, more of the path."""
    runs = [open_run(path) for path in paths]
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise LowbitError("the same run is given twice; give each run once")
    names = [run.name for run in runs]
    for depth in range(2, 10):
        if len(set(names)) == len(names):
            break
        again = {name for name in names if names.count(name) > 1}
        names = [
            "/".join(run.path.resolve().parts[-depth:]) if name in again else name
            for run, name in zip(runs, names, strict=True)
        ]
    return [Run(**vars(run) | {"name": name}) for run, name in zip(runs, names, strict=True)]


def weight_bits(layer: dict[str, Any]) -> int:
    """How many bits a value of a planned layer's weight has.

    >>> weight_bits({"plan": {"forward": {"weight": {"grid": "int4"}}}})
    4
    """
    return _bits(layer["plan"]["forward"]["weight"]["grid"])


def _bits(grid: str) -> int:
    bits = _FULL_BITS.get(grid) or parse_grid(grid).bits
    assert bits is not None, grid
    return bits


def _precision_of(plan: dict[str, Any]) -> str:
    parts = {"W": plan["forward"]["weight"], "A": plan["forward"]["input"]}
    backward = plan["grad_input"] or plan["grad_weight"]
    if backward:
        parts["G"] = backward["grad_output"]
    return "".join(f"{letter}{_bits(spec['grid'])}" for letter, spec in parts.items())


def _records(path: Path) -> list[dict[str, Any]]:
    """The complete lines of the log; a running or crashed run may have cut the last one."""
    if not path.is_file():
        return []
    advice = "remove the line"
    found = []
    for number, line in enumerate(schema.read_text(path).split("\n")[:-1], start=1):
        if line.endswith("}"):
            where = f"{path}, line {number}"
            record = schema.check(schema.parse_json(line, where, advice), schema.RECORD, where, advice)
            if record["kind"] == "health":
                schema.check(record, schema.HEALTH, where, advice)
            found.append(record)
    return found
