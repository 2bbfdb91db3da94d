"""A checkpoint: everything a run needs to continue, in one file that is replaced atomically.

The file `latest.lowbit` is in safetensors format: tensors, and JSON in its metadata; nothing in it can run
code. Its metadata begins with a digest of all other bytes of the file. Beside it are `latest.pdparams` and
`latest.pdopt` for the tools of the Paddle ecosystem.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import paddle
import safetensors
import safetensors.numpy
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from lowbit.digest import DIGITS, PICKLE, DamagedFile, add_digest, damaged, digest
from lowbit.errors import LowbitError
from lowbit.files import link_atomically, write_atomically

SUFFIX = ".lowbit"
FP32 = "fp32"  # the name of the unquantized model that a quantized run started from
COMPANIONS = (".pdparams", ".pdopt")
_FORMAT = 1
_TENSORS = ("model", "optimizer", "trained")  # the fields that hold tensors
# A safetensors file: the header's length in 8 bytes, the header in JSON, the tensors.
_HEADER = b'{"__metadata__":{'
_BEFORE_DIGEST, _AFTER_DIGEST = b'"digest":"', b'",    '  # 80 bytes with the digits: tensors stay aligned
_DIGEST_AT = 8 + len(_HEADER) + len(_BEFORE_DIGEST)

_log = logging.getLogger(__name__)


@dataclass
class Progress:
    """The position of a run. `step` counts over the whole run, `batch` within the epoch."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best: float | None = None  # the best top-1 so far
    best_epoch: int | None = None
    last: float | None = None  # the last top-1
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
    # With an average of weights, `model` has the averages, and this the weights that training continues with.
    trained: dict[str, np.ndarray] = field(default_factory=dict)


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Writes `path` (which ends in .lowbit) as one atomic unit."""
    tensors = {f"model/{name}": array for name, array in checkpoint.model.items()}
    tensors |= {f"optimizer/{name}": array for name, array in checkpoint.optimizer.items()}
    tensors |= {f"trained/{name}": array for name, array in checkpoint.trained.items()}
    described = {key: value for key, value in _fields(checkpoint).items() if key not in _TENSORS}
    metadata = {"lowbit": json.dumps({"format": _FORMAT, **described})}
    content = safetensors.numpy.save(
        {name: np.asarray(array, order="C") for name, array in tensors.items()}, metadata=metadata
    )
    parts = _with_digest(content)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.writelines(parts)

    write_atomically(path, write)


def save_for_ecosystem(path: Path, model: paddle.nn.Layer, optimizer: paddle.optimizer.Optimizer) -> None:
    """Writes `.pdparams` and `.pdopt` next to the checkpoint, as Paddle's tools expect them."""
    for suffix, state in zip(COMPANIONS, (model.state_dict(), optimizer.state_dict()), strict=True):
        content = BytesIO()
        paddle.save(state, content)
        sealed = add_digest(content.getvalue(), PICKLE)
        write_atomically(path.with_suffix(suffix), partial(Path.write_bytes, data=sealed))


def link_checkpoint(path: Path, other: Path) -> None:
    """Gives a checkpoint and its companions a second name; the disk holds them once."""
    for suffix in (*COMPANIONS, SUFFIX):
        link_atomically(path.with_suffix(suffix), other.with_suffix(suffix))


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint. A file that is damaged, cut short or foreign is an error that names it.

    Files of lowbit versions that wrote no digest are read, too, with a warning in the log.
    """
    if not path.is_file():
        raise LowbitError(f"no checkpoint {path}")
    try:
        content = path.read_bytes()
        if has_digest(content) and _digest_of(content).encode() != content[_DIGEST_AT:][:DIGITS]:
            raise damaged(path)
        metadata = _metadata(content)
        if metadata.keys() - {"digest"} != {"lowbit"}:
            raise ValueError(f"unknown metadata: {', '.join(metadata)}")
        described = json.loads(metadata["lowbit"])
        tensors = safetensors.numpy.load(content)
        if described.get("format") != _FORMAT and type(described.get("format")) is int:
            raise LowbitError(f"{path} was written by a newer lowbit; update lowbit to read it")
        values = _Described.model_validate(described)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "its metadata"
        raise _unreadable(path, f"{place}: {first['msg']}") from None
    except LowbitError:
        raise
    except Exception as error:  # a damaged or forged file can raise nearly anything
        raise _unreadable(path, str(error)) from None
    if "digest" not in metadata:
        _log.warning("%s carries no digest (an older lowbit wrote it): damage to it cannot be noticed", path)
    fields = {name: getattr(values, name) for name in _Described.model_fields if name != "format"}
    fields["progress"] = Progress(**values.progress.model_dump())
    return Checkpoint(**{name: _below(f"{name}/", tensors) for name in _TENSORS}, **fields)


def has_digest(content: bytes) -> bool:
    """Whether this content of a .lowbit file carries a digest."""
    return content[8:_DIGEST_AT] == _HEADER + _BEFORE_DIGEST


def accept_content(path: Path) -> None:
    """Gives a changed .lowbit file the digest of its present content."""
    content = path.read_bytes()
    if has_digest(content):
        parts = [content[:_DIGEST_AT], _digest_of(content).encode(), content[_DIGEST_AT + DIGITS :]]
    else:
        parts = _with_digest(content)
    write_atomically(path, lambda file: file.write_bytes(b"".join(parts)))
    read_checkpoint(path)


def _with_digest(content: bytes) -> list[bytes]:
    """A safetensors file with a digest at the beginning of its metadata, in parts."""
    start = 8 + len(_HEADER)
    if content[8:start] != _HEADER:
        raise ValueError("safetensors did not write the metadata first")
    more = len(_BEFORE_DIGEST) + DIGITS + len(_AFTER_DIGEST)
    length = int.from_bytes(content[:8], "little") + more
    before = length.to_bytes(8, "little") + _HEADER + _BEFORE_DIGEST
    rest: Any = memoryview(content)[start:]
    return [before, digest([before, _AFTER_DIGEST, rest]).encode(), _AFTER_DIGEST, rest]


def _digest_of(content: bytes) -> str:
    """Of everything but the digest itself."""
    view = memoryview(content)
    return digest([view[:_DIGEST_AT], view[_DIGEST_AT + DIGITS :]])


def _metadata(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])["__metadata__"]


def _unreadable(path: Path, reason: str) -> DamagedFile:
    reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…"
    return DamagedFile(
        f"{path} is not a readable lowbit checkpoint, it may be truncated ({reason}); "
        f"use another one of {path.parent}"
    )


_LONGEST = 200  # characters of a reason
_Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class _DescribedProgress(_Strict):
    """`Progress` as it is in a file, where anything could be."""

    epoch: _Count = 0
    batch: _Count = 0
    step: _Count = 0
    best: FiniteFloat | None = None
    best_epoch: _Count | None = None
    last: FiniteFloat | None = None
    bad_steps: _Count = 0
    bad_in_a_row: _Count = 0
    meter: list[FiniteFloat] = []
    bad_images: list[str] = []


class _Described(_Strict):
    """What the metadata must hold; of the config and the recipe, their own readers check the rest."""

    format: int
    progress: _DescribedProgress
    scaler: dict[str, Any]
    config: dict[str, Any]
    model_name: str
    classes: list[str]
    environment: dict[str, str]
    order: dict[str, int]
    recipe: dict[str, Any] | None = None
    teacher: str | None = None


def find_checkpoint(path: Path, *, name: str = "latest") -> Path | None:
    """The .lowbit file of a run folder, a checkpoint folder, or that a name of Paddle's tools refers to.

    >>> find_checkpoint(Path("runs/digits"))  # doctest: +SKIP
    PosixPath('runs/digits/checkpoints/latest.lowbit')
    """
    candidates = [path / f"{name}{SUFFIX}", path / "checkpoints" / f"{name}{SUFFIX}"]
    if path.suffix == SUFFIX:
        candidates.append(path)
    elif path.suffix in COMPANIONS:
        candidates.append(path.with_suffix(SUFFIX))
    elif path.name:  # the current folder, ".", has none
        candidates.append(path.with_name(path.name + SUFFIX))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def find_fp32(path: Path) -> Path | None:
    """The unquantized model that was saved next to a quantized run's checkpoint, if there is one.

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
