"""A step of the chain, and the plan: its steps in the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

Environment = Mapping[str, str | None]  # None: the variable is taken out


class StepKind(str, Enum):
    """What a step does."""

    TRAIN = "train"
    EVAL = "eval"
    EXPORT = "export"
    INFER = "infer"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One program to run. Paths are relative to the plan's root, where it runs.

    `environment` is added to that of the caller. `folder` is the run's folder, or the model's. `weights` is
    the checkpoint that it reads, `image` what inference is given. `leaves` is the file or folder that must be
    there afterwards. `needs` names the steps that must have succeeded. `skipped` says why the step will not
    run; `note` says in what it departs from the config. `quantized`: what its run exports must be quantized.
    """

    name: str
    kind: StepKind
    arguments: tuple[str, ...]
    log: str
    folder: str
    environment: Environment = field(default_factory=dict)
    weights: str | None = None
    image: str | None = None
    leaves: str | None = None
    needs: tuple[str, ...] = ()
    skipped: str | None = None
    note: str | None = None
    quantized: bool = False


@dataclass(frozen=True, kw_only=True)
class ChainPlan:
    """What a config's mode comes to. `notes` say what was left out, and why."""

    config: str
    layout: int
    model_name: str
    mode: str
    root: Path
    output: str
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()

    @property
    def results_log(self) -> str:
        """Where the status lines go."""
        return f"{self.output}/results_python.log"
