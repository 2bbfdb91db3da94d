"""The model that is served: found in a folder, opened in an engine, run once, and described."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowbit.deploy.engines import Engine, TensorInfo
from lowbit.deploy.model_files import MODEL_SUFFIXES, read_inference_yml
from lowbit.deploy.verify.candidates import ENGINES, FORMATS, INT8_FOLDER, ONNX_FILE, open_engine
from lowbit.errors import LowbitError, did_you_mean
from lowbit.machine import cpu_info
from lowbit.serve.protocol import DATATYPES, datatype_of

VERSION = "1"


@dataclass(frozen=True)
class ServedModel:
    """An exported model in one or more instances of an engine."""

    name: str
    engines: tuple[Engine, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    joins: bool  # whether answers to a batch can be told apart, so that requests may be joined

    @property
    def platform(self) -> str:
        """The engine, as `lowbit_onnxruntime`."""
        return "lowbit_" + re.sub(r"[^a-z0-9]+", "", self.engines[0].name.lower().rstrip("0123456789. "))

    @property
    def sample_values(self) -> int:
        """Numbers in one sample of all inputs."""
        return sum(int(np.prod(one.shape[1:])) for one in self.inputs)

    def metadata(self) -> dict[str, Any]:
        """What the protocol calls model metadata."""
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": self.platform,
            "inputs": [_described(one) for one in self.inputs],
            "outputs": [_described(one) for one in self.outputs],
        }


def open_served_model(
    path: str | Path,
    *,
    engine: str | None = None,
    name: str | None = None,
    threads: int | None = None,
    instances: int | None = None,
) -> ServedModel:
    """The exported model of a folder (or of a run folder with `export` inside), warmed up.

    `engine` is one of `onnxruntime`, `openvino`, `lowbit`, `paddle`, `paddle-int8`; by default ONNX Runtime
    where there is an ONNX file, else Paddle Inference. `instances` run side by side, each on `threads`
    threads; by default they share the cores, and ONNX files have two where there are two cores: while one
    takes its next batch, the other computes, and neither waits for a core that the server itself is using.

    model = open_served_model("runs/digits/export", engine="openvino")
    """
    if instances is not None and instances < 1:
        raise LowbitError(f"a server needs at least one instance, got {instances}")
    folder = _find_folder(Path(path))
    key = _choose_engine(engine, folder)
    instances = instances or (min(2, cpu_info().cores) if FORMATS[key] == "ONNX" else 1)
    threads = threads or max(1, cpu_info().cores // instances)
    engines = tuple(open_engine(key, folder, threads) for _ in range(instances))
    signature = engines[0].signature()
    for one in signature.inputs:
        if one.dtype not in DATATYPES.values() or not one.shape or min(one.shape[1:], default=1) < 0:
            raise LowbitError(
                f'input "{one.name}" of {folder} is {one.dtype} {list(one.shape)}: lowbit serves models '
                "whose inputs leave only the batch size open"
            )
    outputs, joins = _warm_up(engines, signature.inputs, signature.outputs)
    return ServedModel(_check_name(name or _recorded_name(folder)), engines, signature.inputs, outputs, joins)


def _find_folder(path: Path) -> Path:
    if path.name == ONNX_FILE and path.is_file():
        return path.parent
    for folder in (path, path / "export"):
        if any((folder / name).is_file() for name in (ONNX_FILE, *(f"inference{s}" for s in MODEL_SUFFIXES))):
            return folder
    raise LowbitError(f"{path} holds no exported model ({ONNX_FILE} or inference.json): lowbit export first")


def _choose_engine(word: str | None, folder: Path) -> str:
    onnx = (folder / ONNX_FILE).is_file()
    if word is None:
        return "onnxruntime" if onnx else "paddle"
    if word not in ENGINES:
        raise LowbitError(f'no engine "{word}"; {did_you_mean(word, ENGINES)}')
    if FORMATS[word] == "ONNX" and not onnx:
        raise LowbitError(f"{folder} holds no {ONNX_FILE}, which {word} reads: lowbit export --format onnx")
    if word == "paddle-int8" and not (folder / INT8_FOLDER).is_dir():
        raise LowbitError(f"{folder} holds no folder {INT8_FOLDER}: lowbit export --format paddle-int8")
    return word


def _recorded_name(folder: Path) -> str:
    yml = folder / "inference.yml"
    return read_inference_yml(yml).Global.model_name if yml.is_file() else "model"


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise LowbitError(f'"{name}" cannot be part of a URL: give a --name of letters, digits, _ . -')
    return name


def _warm_up(
    engines: Sequence[Engine], inputs: Sequence[TensorInfo], names: Sequence[str]
) -> tuple[tuple[TensorInfo, ...], bool]:
    """Run every engine, as the first run is slow; the outputs, and whether they are per sample."""
    answers = []
    for count in (1, 2):
        for engine in engines:
            answers = engine.run_all([np.zeros((count, *one.shape[1:]), one.dtype) for one in inputs])
    joins = all(one.ndim > 0 and len(one) == 2 for one in answers)
    outputs = []
    for name, one in zip(names, answers, strict=True):
        if one.dtype not in DATATYPES.values():
            raise LowbitError(f'output "{name}" is {one.dtype}, which the protocol has no word for')
        outputs.append(TensorInfo(name, one.dtype, (-1, *one.shape[1:]) if joins else one.shape))
    return tuple(outputs), joins


def _described(info: TensorInfo) -> dict[str, Any]:
    return {"name": info.name, "datatype": datatype_of(info.dtype), "shape": list(info.shape)}
