"""What an exported model's files say without being run: signs of quantization, whose weights they are."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lowbit.deploy import ModelFiles
from lowbit.deploy.params_file import stored_tensors
from lowbit.safe_pickle import load_arrays
from lowbit.tipc.result import Check

# A .json program writes Paddle's own operators as "1.name"; in a .pdmodel the names stand between bytes.
_ROUNDING = re.compile(rb'"1\.(?:round_?|quantize_linear|fake_\w*quantize\w*)"')
_QUANTIZING = re.compile(rb"(?<!de)quantize_linear|fake_\w*quantize\w*")
_TELLING = 16  # elements; a smaller array may be equal by chance


@dataclass(frozen=True)
class Signs:
    """How often values are put on a grid in a program, and how many of its tensors are in 8 bits."""

    roundings: int
    small_tensors: int

    @property
    def is_quantized(self) -> bool:
        return self.roundings > 0 or self.small_tensors > 0

    def __str__(self) -> str:
        return f"{self.roundings} operators that quantize, {self.small_tensors} tensors in 8 bits"


def paddle_signs(files: ModelFiles) -> Signs:
    """Of a program of Paddle's, in either format."""
    pattern = _ROUNDING if files.model.suffix == ".json" else _QUANTIZING
    small = sum(tensor.is_8_bit for tensor in stored_tensors(files.params))
    return Signs(len(pattern.findall(files.model.read_bytes())), small)


def onnx_signs(path: Path) -> Signs:
    """Of an ONNX file."""
    import onnx

    graph = onnx.load(str(path)).graph
    small = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
    return Signs(
        sum(node.op_type == "QuantizeLinear" for node in graph.node),
        sum(tensor.data_type in small for tensor in graph.initializer),
    )


def check_quantized(signs: Signs, layers: int | None) -> Check:
    """Whether a model that must be quantized is; `layers` is how many layers of the trained one are."""
    if not signs.is_quantized:
        return Check("quantized", False, "nothing in the exported model quantizes: it is the fp32 model")
    # Layers that share an input with the same scale have it quantized once; their weights are still two.
    if layers is not None and max(signs.roundings, signs.small_tensors) < layers:
        return Check("quantized", False, f"{layers} layers are quantized in training, exported: {signs}")
    return Check("quantized", True, str(signs))


def check_same_weights(weights: Path, files: ModelFiles, *, quantized: bool) -> Check:
    """Whether an exported model holds the arrays of a checkpoint, for models that we cannot run ourselves.

    An exporter that found no fitting key exports random weights: then no array of the two is equal.
    """
    name = "weights of the checkpoint"
    if weights.suffix != ".pdparams":
        return Check(name, None, f"{weights.name} is not a .pdparams file")
    digests = {_digest(array) for array in _arrays(load_arrays(weights)) if array.size >= _TELLING}
    if not digests:
        return Check(name, None, f"{weights.name} has no array of {_TELLING} elements or more")
    found = len(digests & set(_stored_digests(files.params)))
    detail = f"{found} of the {len(digests)} arrays of {weights.name} are in {files.params.name}"
    if found:
        return Check(name, True, detail)
    if quantized:
        return Check(name, None, f"{detail}: its weights may be stored otherwise")
    return Check(name, False, f"{detail}: it was exported with other weights")


def _stored_digests(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        for tensor in stored_tensors(path):
            file.seek(tensor.start)
            yield hashlib.sha256(file.read(tensor.size)).digest()


def _digest(array: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def _arrays(value: Any) -> Iterable[np.ndarray]:
    """All arrays in dicts, lists and tuples, but those of one value: they are equal by chance, too."""
    if isinstance(value, np.ndarray):
        if value.size and (value != value.flat[0]).any():
            yield value
    elif isinstance(value, (dict, list, tuple)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _arrays(inner)
