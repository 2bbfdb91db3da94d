"""A checkpoint: everything a run needs to go on, in one file that is replaced atomically.

The file `latest.lowbit` is in safetensors format: tensors, and JSON in its metadata; nothing in it can run
code. Beside it stand `latest.pdparams` and `latest.pdopt` for the tools of the Paddle ecosystem.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import safetensors
import safetensors.numpy

from lowbit.errors import LowbitError
from lowbit.training.files import link_atomically, write_atomically

SUFFIX = ".lowbit"
FP32 = "fp32"  # the name of the unquantized model that a quantized run started from
_COMPANIONS = (".pdparams", ".pdopt")
_FORMAT = 1


@dataclass
class Progress:
    """Where a run stands. `step` counts over the whole run, `batch` within the epoch."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best: float | None = None  # the best top-1 so far
    bad_steps: int = 0  # steps skipped for NaN or Inf
    bad_in_a_row: int = 0
    meter: list[float] = field(default_factory=list)  # the sums of an unfinished epoch
    bad_images: list[str] = field(default_factory=list)


@dataclass
class Checkpoint:
    """The whole state of a run. Random numbers are drawn by (seed, step), so the two are their state."""

    model: dict[str, np.ndarray]
    optimizer: dict[str, np.ndarray]
    progress: Progress
    scaler: dict[str, Any]
    config: dict[str, Any]
    model_name: str
    classes: list[str]
    environment: dict[str, str]
    order: dict[str, int]  # what the sampler's position means: samples, batch size, ranks, seed
    recipe: dict[str, Any] | None = None  # of quantization-aware training, in lowbit's own dialect
    teacher: str | None = None  # the digest of a teacher's weights; its path is in the config


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes `path` (which ends in .lowbit) as one atomic unit."""
    tensors = {f"model/{name}": array for name, array in checkpoint.model.items()}
    tensors |= {f"optimizer/{name}": array for name, array in checkpoint.optimizer.items()}
    described = {
        key: value for key, value in _fields(checkpoint).items() if key not in ("model", "optimizer")
    }
    metadata = {"lowbit": json.dumps({"format": _FORMAT, **described})}
    content = safetensors.numpy.save(
        {name: np.asarray(array, order="C") for name, array in tensors.items()}, metadata=metadata
    )
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def save_for_ecosystem(path: Path, model: paddle.nn.Layer, optimizer: paddle.optimizer.Optimizer) -> None:
    """Writes `.pdparams` and `.pdopt` beside the checkpoint, as Paddle's tools expect them."""
    for suffix, state in zip(_COMPANIONS, (model.state_dict(), optimizer.state_dict()), strict=True):
        write_atomically(
            path.with_suffix(suffix), lambda temporary, state=state: paddle.save(state, str(temporary))
        )


def link_checkpoint(path: Path, other: Path) -> None:
    """Gives a checkpoint and its companions a second name; the disk holds them once."""
    for suffix in (*_COMPANIONS, SUFFIX):
        link_atomically(path.with_suffix(suffix), other.with_suffix(suffix))


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint; a truncated or foreign file is an error that names it."""
    try:
        with safetensors.safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        described = json.loads(metadata["lowbit"])
        if described.pop("format") != _FORMAT:
            raise LowbitError(f"{path} was written by a newer lowbit; update lowbit to read it")
        described["progress"] = Progress(**described["progress"])
        return Checkpoint(
            model=_below("model/", tensors), optimizer=_below("optimizer/", tensors), **described
        )
    except FileNotFoundError:
        raise LowbitError(f"no checkpoint {path}") from None
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise LowbitError(
            f"{path} is not a readable lowbit checkpoint, it may be truncated ({error}); "
            f"use another one of {path.parent}"
        ) from None


def find_checkpoint(path: Path, *, name: str = "latest") -> Path | None:
    """The .lowbit file that a run folder, a checkpoint folder or a name of the ecosystem's stands for.

    >>> find_checkpoint(Path("runs/digits"))  # doctest: +SKIP
    PosixPath('runs/digits/checkpoints/latest.lowbit')
    """
    candidates = [path / f"{name}{SUFFIX}", path / "checkpoints" / f"{name}{SUFFIX}"]
    if path.suffix == SUFFIX:
        candidates.append(path)
    elif path.suffix in _COMPANIONS:
        candidates.append(path.with_suffix(SUFFIX))
    elif path.name:  # the current folder, ".", has none
        candidates.append(path.with_name(path.name + SUFFIX))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def find_fp32(path: Path) -> Path | None:
    """The unquantized model that was kept beside a quantized run's checkpoint, if there is one.

    >>> find_fp32(Path("runs/w4a4/checkpoints/best.lowbit"))  # doctest: +SKIP
    PosixPath('runs/w4a4/checkpoints/fp32.lowbit')
    """
    beside = path.with_name(FP32 + SUFFIX)
    return beside if beside.is_file() and beside != path else None


def _fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """The fields by name, tensors not copied."""
    return {**vars(checkpoint), "progress": asdict(checkpoint.progress)}


def _below(prefix: str, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
