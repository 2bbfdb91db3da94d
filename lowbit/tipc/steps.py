"""The steps of a plan, and the builder that collects them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from lowbit.tipc.fields import DeviceChoice, Field, Words

Environment = Mapping[str, str | None]  # None: the variable is taken out


class StepKind(str, Enum):
    """The kinds of step."""

    TRAIN = "train"
    EVAL = "eval"
    EXPORT = "export"
    INFER = "infer"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One program to run. It runs in `directory`; that and the other paths are relative to the plan's root.

    `environment` is added to that of the caller. `folder` is the run's folder, or the model's. `weights` is
    the checkpoint that it reads, `image` what inference is given. `leaves` is the file or folder that must be
    there afterwards. `needs` names the steps that must have succeeded. `skipped` says why the step will not
    run; `note` says in what it differs from the config. `quantized`: what its run exports must be quantized.
    `links` are made in `leaves` afterwards: the name that later steps expect, and the file that has another.
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
    directory: str = "."
    links: Mapping[str, str] = field(default_factory=dict)


def in_directory(step: Step, command: str) -> str:
    """A step's command for a shell in the root."""
    return command if step.directory == "." else f"(cd {shlex.quote(step.directory)} && {command})"


@dataclass(frozen=True, kw_only=True)
class ChainPlan:
    """The steps of a config's mode. `notes` say what was left out, and why."""

    config: str
    layout: int
    dialect: str
    model_name: str
    mode: str
    root: Path
    output: str
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()

    @property
    def results_log(self) -> str:
        """The file of the status lines."""
        return f"{self.output}/results_python.log"


CPU_PROCESSES = 2  # what several cards become on a CPU
_MOST_STEPS = 2000


@dataclass(frozen=True)
class Machine:
    """The machine of a plan: its number of cards (None: enough), or everything on the CPU."""

    cards: int | None = None
    on_cpu: bool = False

    def missing(self, choice: DeviceChoice) -> str | None:
        """Why this machine lacks a device, or None."""
        if choice.is_cpu or self.on_cpu or self.cards is None or max(choice.cards) < self.cards:
            return None
        have = {0: "no card", 1: "one card, number 0"}.get(
            self.cards, f"{self.cards} cards, 0 to {self.cards - 1}"
        )
        wanted = f"card{'s' * (len(choice.cards) > 1)} {choice.text}"
        return f"needs {wanted}; Paddle sees {have} here. --device cpu runs it on the CPU"

    def visible(self, choice: DeviceChoice) -> Environment:
        """The environment of a step that runs in one process: it sees the first card, or none."""
        if choice.is_cpu or self.on_cpu:
            return {"CUDA_VISIBLE_DEVICES": ""}
        return {"CUDA_VISIBLE_DEVICES": str(choice.cards[0])}

    def while_training(self, choice: DeviceChoice) -> Environment:
        """The environment of training. The launcher hands out the cards itself; on a CPU the mere presence of
        the variable, even empty, makes it look for cards."""
        if not choice.is_launched:
            return self.visible(choice)
        return {"CUDA_VISIBLE_DEVICES": None} if self.on_cpu else {}

    def launcher(self, choice: DeviceChoice, cards_option: str = "--gpus") -> Words:
        """The words between the interpreter and the training script."""
        if not choice.is_launched:
            return ()
        launch = ("-m", "paddle.distributed.launch")
        if self.on_cpu:  # on a CPU build of Paddle, --gpus ends in an error of the launcher
            return (*launch, f"--nproc_per_node={CPU_PROCESSES}")
        addresses = (f"--ips={','.join(choice.addresses)}",) if choice.addresses else ()
        return (*launch, *addresses, f"{cards_option}={choice.text}")


@dataclass
class Builder:
    """Collects the steps and notes of a plan."""

    machine: Machine
    python: Words
    output: str
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _skipped: set[str] = field(default_factory=set)

    def unique(self, name: str, *, longest: int = 230) -> str:
        """A unique name that is valid in a path, so that no two runs share a folder or a log.

        >>> builder = Builder(Machine(), ("python",), "./output")
        >>> builder.unique("a/b"), builder.unique("a/b")
        ('a_b', 'a_b_2')
        """
        plain = re.sub(r"[^\w.,=+-]", "_", name)[:longest]
        found, count = plain, 1
        while found in self._names:
            count += 1
            found = f"{plain}_{count}"
        self._names.add(found)
        return found

    def note(self, field: Field, message: str) -> None:
        text = f"line {field.number}: {message}"
        if text not in self.notes:
            self.notes.append(text)

    def add(self, step: Step, cause: Field) -> Step:
        """Add a step. A step that needs a skipped one is skipped. Too many steps are an error at `cause`."""
        if len(self.steps) == _MOST_STEPS:
            raise cause.error(f"expected alternatives that come to at most {_MOST_STEPS} commands")
        without = [name for name in step.needs if name in self._skipped]
        if without and step.skipped is None:
            step = replace(step, skipped=f"needs {without[0]}, which is skipped")
        if step.skipped is not None:
            self._skipped.add(step.name)
        self.steps.append(step)
        return step
