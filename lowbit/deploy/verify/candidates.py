"""The engines that can be verified, by their names on the command line, and the files that they read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lowbit.deploy.engines import Engine, PaddleEngine, open_onnx
from lowbit.deploy.model_files import find_model_files
from lowbit.errors import LowbitError, did_you_mean
from lowbit.extras import install_command, is_installed
from lowbit.kernels import why_missing

ONNX_FILE = "inference.onnx"
INT8_FOLDER = "int8"  # inside the export folder: Paddle Inference's form with integers
ENGINES = ("paddle", "paddle-int8", "onnxruntime", "openvino", "lowbit")
USUAL_ENGINES = ("paddle", "onnxruntime", "openvino", "lowbit")  # verified unless others are named
FORMATS = {
    "paddle": "Paddle",
    "paddle-int8": "Paddle int8",
    "onnxruntime": "ONNX",
    "openvino": "ONNX",
    "lowbit": "ONNX",
}
# lowbit's runtime has no fast fp32: its speed is held to ONNX Runtime's.
_FP32_ENGINES = {"paddle-int8": "paddle", "lowbit": "onnxruntime"}


@dataclass(frozen=True)
class Candidate:
    """An engine with the exported model in it, and with the fp32 network to compare its speed with."""

    key: str
    engine: Engine
    fp32: Engine | None = None
    onnx: Path | None = None  # the file, where the engine tells what it computed on the way


@dataclass(frozen=True)
class Size:
    """Bytes of an exported model in one format."""

    format: str
    exported: int
    fp32: int | None  # None where the model is not quantized: there is no other form

    @property
    def ratio(self) -> float | None:
        """How many times as large the fp32 form is."""
        return None if self.fp32 is None else self.fp32 / self.exported


def parse_engines(text: str) -> list[str]:
    """The engines' names out of words with commas between them; an unknown one is an error.

    >>> parse_engines("onnxruntime, paddle")
    ['onnxruntime', 'paddle']
    """
    keys = [word.strip().casefold() for word in text.split(",") if word.strip()]
    for key in keys:
        if key not in ENGINES:
            raise LowbitError(f'no engine "{key}"; {did_you_mean(key, ENGINES)}')
    if not keys:
        raise LowbitError(f"no engine given; valid: {', '.join(ENGINES)}")
    return list(dict.fromkeys(keys))


def installed_engines(keys: Iterable[str] = USUAL_ENGINES) -> tuple[list[str], list[str]]:
    """Those of the engines whose package is installed, and a line about each of the others.

    >>> installed_engines(["paddle"])
    (['paddle'], [])
    """
    found, notes = [], []
    for key in keys:
        if key == "lowbit" and (reason := why_missing()):
            notes.append(f"lowbit's runtime is skipped: {reason}")
        elif key.startswith("paddle") or key == "lowbit" or is_installed(key):
            found.append(key)
        else:
            notes.append(f"{key} is not installed and is skipped: {install_command(key)}")
    return found, notes


def open_candidates(
    keys: Iterable[str], exported: Path, fp32: Path | None = None, *, threads: int | None = None
) -> list[Candidate]:
    """The engines with the exported model of one folder, and the fp32 one of another.

    open_candidates(["onnxruntime"], Path("runs/digits/export"))
    """
    return [
        Candidate(
            key=key,
            engine=open_engine(key, exported, threads),
            fp32=None if fp32 is None else open_engine(_FP32_ENGINES.get(key, key), fp32, threads),
            onnx=exported / ONNX_FILE if FORMATS[key] == "ONNX" else None,
        )
        for key in keys
    ]


def open_engine(key: str, folder: Path, threads: int | None = None) -> Engine:
    """The engine of this name with the exported model of a folder."""
    if key == "paddle":
        return PaddleEngine(folder, threads=threads)
    if key == "paddle-int8":
        engine = PaddleEngine(folder / INT8_FOLDER, threads=threads)
        engine.name = f"{engine.name} int8"
        return engine
    return open_onnx(folder / ONNX_FILE, key, threads=threads)


def compare_sizes(keys: Iterable[str], exported: Path, fp32: Path | None = None) -> list[Size]:
    """What has to be shipped, per format that one of the engines reads."""
    measures = {"Paddle": _paddle_size, "Paddle int8": _paddle_size, "ONNX": _onnx_size}
    return [
        Size(
            name,
            measures[name](exported / INT8_FOLDER if name == "Paddle int8" else exported),
            None if fp32 is None else measures[name](fp32),
        )
        for name in dict.fromkeys(FORMATS[key] for key in keys)
    ]


def _paddle_size(folder: Path) -> int:
    files = find_model_files(folder)
    return sum(path.stat().st_size for path in (files.model, files.params))


def _onnx_size(folder: Path) -> int:
    return (folder / ONNX_FILE).stat().st_size
