"""What an inference engine is, and what the engines of ONNX files share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lowbit.digest import ONNX, without_digest
from lowbit.errors import LowbitError, did_you_mean

_MOST_THREADS = 1024  # no processor has more, and ONNX Runtime would start as many as it is asked for


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How an engine was set up, in the words of the benchmark report."""

    device: str
    threads: int
    onednn: bool = False
    optimize: bool = True
    memory_optim: bool = False
    tensorrt: bool = False
    precision: str = "fp32"


@dataclass(frozen=True)
class TensorInfo:
    """An input of a model: its name, element type and shape, with -1 for sizes that are left open."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """What a model takes and what its outputs are called, in the order of `run_all`."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[str, ...]


class Engine(Protocol):
    """An exported model, ready to run."""

    name: str  # of the program and its version, such as "Paddle Inference 3.3.1"
    options: EngineOptions
    image_shape: tuple[int, int, int] | None  # (C, H, W) that the model takes, where its folder says so

    def run(self, batch: np.ndarray) -> np.ndarray:
        """Logits [N, classes] of float32 images [N, C, H, W]; any N from 1."""
        ...

    def run_all(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All outputs of a model of any inputs and outputs, given all inputs in their order."""
        ...

    def signature(self) -> Signature:
        """What `run_all` takes and gives; an error where the files do not say it."""
        ...


class LayeredEngine(Engine, Protocol):
    """An engine that also tells what it computed on the way."""

    def run_with(self, batch: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The logits, and the tensors of these names, by name."""
        ...


def check_batch(batch: np.ndarray, image_shape: tuple[int, int, int] | None) -> np.ndarray:
    """The batch in the memory layout that engines copy from, or an error that says what does not fit."""
    if not isinstance(batch, np.ndarray):
        raise LowbitError(f"the engine takes a float32 array of NumPy, got {type(batch).__name__}")
    if batch.dtype != np.float32:
        raise LowbitError(
            f"the engine takes float32 images, got {batch.dtype}; NormalizeImage makes them float32"
        )
    if batch.ndim != 4 or batch.shape[0] == 0:
        raise LowbitError(
            f"the engine takes a batch [N, C, H, W] with N of at least 1, got {list(batch.shape)}"
        )
    if image_shape is not None and batch.shape[1:] != image_shape:
        raise LowbitError(
            f"the model takes images of {format_shape(image_shape)} (channels x height x width), "
            f"got {format_shape(batch.shape[1:])}; check the transform_ops in its inference.yml"
        )
    return np.ascontiguousarray(batch)


def format_shape(shape: tuple[int, ...]) -> str:
    """
    >>> format_shape((3, 224, 224))
    '3x224x224'
    """
    return "x".join(map(str, shape))


# ONNX files: shared by the engines that read them.


# What stands before the reason in ONNX Runtime's and OpenVINO's messages: code, source file, check.
_NOISE = ("[ONNXRuntimeError]", "Exception from", "Check '")


def find_onnx_file(path: str | Path) -> Path:
    """The file itself, whole; an error says what is there instead, or that its digest does not fit."""
    path = Path(path)
    if path.is_dir():
        inside = sorted(file.name for file in path.glob("*.onnx"))
        hint = f"give {path / inside[0]}" if inside else "it holds no .onnx file; export the model first"
        raise LowbitError(f"{path} is a folder, not an ONNX file; {hint}")
    if not path.is_file():
        raise LowbitError(f"no ONNX file {path}; export the model first")
    try:
        without_digest(path.read_bytes(), ONNX, path)
    except OSError as error:
        raise LowbitError(f"{path}: cannot be read ({error.strerror})") from None
    return path


def image_shape_of(shape: list[Any]) -> tuple[int, int, int] | None:
    """(C, H, W) of the graph's input [N, C, H, W]; None where the file leaves one open or takes no images."""
    if len(shape) != 4:
        return None
    channels, height, width = shape[1:]
    return (channels, height, width) if all(isinstance(side, int) for side in shape[1:]) else None


def check_one_in_one_out(inputs: int, outputs: int, path: Path) -> None:
    """Stop at a model that does not turn images into logits."""
    if inputs != 1 or outputs != 1:
        raise LowbitError(
            f"{path} has {inputs} inputs and {outputs} outputs; lowbit runs models with one input (images) "
            "and one output (logits)"
        )


def check_threads(threads: int | None) -> None:
    if threads is None:
        return
    if not isinstance(threads, Integral) or threads > _MOST_THREADS:
        raise LowbitError(f"threads must be a whole number up to {_MOST_THREADS}, got {threads!r}")
    if threads < 1:
        raise LowbitError(f"threads must be at least 1, got {threads}")


def check_input_count(inputs: Sequence[np.ndarray], names: Sequence[str], path: Path) -> None:
    """An error where a model gets more or fewer inputs than it has."""
    if len(inputs) != len(names):
        raise LowbitError(f"{path} takes {len(names)} inputs ({', '.join(names)}), got {len(inputs)}")


def unknown_tensor(name: str, known: list[str], path: Path) -> LowbitError:
    """The error about an intermediate value that the file does not have."""
    return LowbitError(f'{path} has no tensor "{name}"; {did_you_mean(name, known)}')


def reason(error: Exception) -> str:
    """What an engine's message says in its last telling line, without places in its own source code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_NOISE)] or lines
    return (telling[-1] if telling else type(error).__name__)[:300]
