"""What the engines that read ONNX files have in common: the file and the names inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowbit.digest import ONNX, without_digest
from lowbit.errors import LowbitError, did_you_mean

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
    if threads is not None and threads < 1:
        raise LowbitError(f"threads must be at least 1, got {threads}")


def unknown_tensor(name: str, known: list[str], path: Path) -> LowbitError:
    """The error about an intermediate value that the file does not have."""
    return LowbitError(f'{path} has no tensor "{name}"; {did_you_mean(name, known)}')


def reason(error: Exception) -> str:
    """What an engine's message says in its last telling line, without places in its own source code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_NOISE)] or lines
    return (telling[-1] if telling else type(error).__name__)[:300]
