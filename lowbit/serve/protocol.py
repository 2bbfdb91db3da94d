"""The Open Inference Protocol (KServe v2): requests to arrays, arrays to responses, in JSON and binary.

In the binary extension a body is JSON followed by the raw bytes of tensors; the header
`Inference-Header-Content-Length` says how long the JSON is. Nothing here knows HTTP or an engine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError
from pydantic_core import from_json

from lowbit.deploy.engines import TensorInfo
from lowbit.errors import LowbitError, did_you_mean

HEADER_LENGTH = "Inference-Header-Content-Length"
EXTENSIONS = ("binary_tensor_data",)
DATATYPES = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
}
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
# The longest a float32 becomes in JSON, with the comma: -1.1754943508222875e-38,
JSON_BYTES_PER_VALUE = 25
_BINARY_SIZE = "binary_data_size"


class RequestError(LowbitError):
    """A request that cannot be answered, and the HTTP status that says why."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class _Input(BaseModel):
    name: str
    shape: list[Annotated[int, Field(ge=0)]]
    datatype: str
    data: Any = None
    parameters: dict[str, Any] = {}


class _Output(BaseModel):
    name: str
    parameters: dict[str, Any] = {}


class _Request(BaseModel):
    id: str | None = None
    inputs: list[_Input]
    outputs: list[_Output] = []
    parameters: dict[str, Any] = {}


@dataclass(frozen=True)
class InferRequest:
    """The arrays of a request in the model's order, and which outputs it wants, in which form."""

    inputs: list[np.ndarray[Any, Any]]
    outputs: tuple[tuple[int, bool], ...]  # index of the output; whether in binary
    id: str | None = None

    @property
    def samples(self) -> int:
        return len(self.inputs[0])


def datatype_of(dtype: np.dtype[Any]) -> str:
    """
    >>> datatype_of(np.dtype("float32"))
    'FP32'
    """
    return _NAMES[dtype]


def parse_request(
    body: bytes,
    header_length: int | None,
    inputs: Sequence[TensorInfo],
    outputs: Sequence[str],
    max_batch: int,
) -> InferRequest:
    """A request's body, checked against what the model takes; RequestError says what does not fit.

    >>> body = b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}'
    >>> info = TensorInfo("x", np.dtype("float32"), (-1, 2))
    >>> parse_request(body, None, [info], ["logits"], max_batch=8).inputs
    [array([[1., 2.]], dtype=float32)]
    """
    text, binary = body, memoryview(b"")
    if header_length is not None:
        if not 0 <= header_length <= len(body):
            raise RequestError(f"{HEADER_LENGTH} is {header_length}, the body has {len(body)} bytes")
        text, binary = body[:header_length], memoryview(body)[header_length:]
    request = _read(text)
    given = _by_name(request.inputs, [one.name for one in inputs], "input")
    arrays, position = {}, 0
    for one in request.inputs:  # binary data follows in the order of the request
        size = one.parameters.get(_BINARY_SIZE)
        data = None
        if size is not None:
            if type(size) is not int or size < 0 or position + size > len(binary):
                raise RequestError(
                    f'input "{one.name}": {_BINARY_SIZE} is {size!r}, {len(binary) - position} bytes are left'
                )
            data, position = binary[position : position + size], position + size
        arrays[one.name] = _array(one, data, inputs[given[one.name]])
    if position != len(binary):
        raise RequestError(f"{len(binary) - position} bytes of binary data belong to no input")
    ordered = [arrays[one.name] for one in inputs]
    counts = {len(one) for one in ordered}
    if len(counts) != 1:
        raise RequestError(f"the inputs have different batch sizes: {sorted(counts)}")
    if not 1 <= len(ordered[0]) <= max_batch:
        raise RequestError(f"the batch has {len(ordered[0])} samples; this server takes 1 to {max_batch}")
    return InferRequest(ordered, _wanted(request, outputs), request.id)


def _read(text: bytes) -> _Request:
    try:
        values = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the request is not JSON: {error}") from None
    try:
        return _Request.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the request"
        raise RequestError(f"{place}: {first['msg']}") from None


def _by_name(given: Sequence[_Input | _Output], names: Sequence[str], what: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in given:
        if one.name not in names:
            raise RequestError(f'the model has no {what} "{one.name}"; {did_you_mean(one.name, names)}')
        if one.name in found:
            raise RequestError(f'{what} "{one.name}" is given twice')
        found[one.name] = list(names).index(one.name)
    if what == "input" and len(found) != len(names):
        missing = [name for name in names if name not in found]
        raise RequestError(f"missing inputs: {', '.join(missing)}")
    return found


def _holds_text(data: Any) -> bool:
    if isinstance(data, list):
        return any(type(one) not in (int, float, bool) and _holds_text(one) for one in data)
    return isinstance(data, (str, dict))


def _array(given: _Input, binary: memoryview | None, info: TensorInfo) -> np.ndarray[Any, Any]:
    expected = datatype_of(info.dtype)
    if given.datatype != expected:
        raise RequestError(f'input "{given.name}" is {expected}, not {given.datatype}')
    shape = tuple(given.shape)
    fits = len(shape) == len(info.shape) and all(
        wanted in (-1, side) for side, wanted in zip(shape, info.shape, strict=True)
    )
    if not fits:
        raise RequestError(f'input "{given.name}" has the shape {list(info.shape)}, got {list(shape)}')
    count = math.prod(shape)
    if binary is not None:
        if given.data is not None:
            raise RequestError(f'input "{given.name}" has both data and {_BINARY_SIZE}')
        if len(binary) != count * info.dtype.itemsize:
            raise RequestError(
                f'input "{given.name}": {list(shape)} of {expected} are {count * info.dtype.itemsize} bytes, '
                f"got {len(binary)}"
            )
        return np.frombuffer(binary, info.dtype.newbyteorder("<")).reshape(shape)
    if given.data is None:
        raise RequestError(f'input "{given.name}" has no data')
    if _holds_text(given.data):  # of one long text NumPy would make an array of that length for every value
        raise RequestError(f'input "{given.name}": data holds values that are no {expected}')
    try:
        values = np.asarray(given.data)  # flat or nested
    except (ValueError, OverflowError, MemoryError):
        raise RequestError(f'input "{given.name}": data is not a regular array') from None
    kinds = "b" if info.dtype.kind == "b" else ("iu" if info.dtype.kind in "iu" else "iuf")
    if values.size and values.dtype.kind not in kinds:
        raise RequestError(f'input "{given.name}": data holds values that are no {expected}')
    if values.size != count:
        raise RequestError(
            f'input "{given.name}": {list(shape)} has {count} values, data holds {values.size}'
        )
    if info.dtype.kind in "iu" and values.size:
        limits = np.iinfo(info.dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise RequestError(f'input "{given.name}": data holds values beyond {expected}')
    with np.errstate(over="ignore"):
        return values.astype(info.dtype).reshape(shape)


def _wanted(request: _Request, outputs: Sequence[str]) -> tuple[tuple[int, bool], ...]:
    everything = request.parameters.get("binary_data_output") is True
    if not request.outputs:
        return tuple((index, everything) for index in range(len(outputs)))
    places = _by_name(request.outputs, outputs, "output")
    return tuple(
        (places[one.name], one.parameters.get("binary_data", everything) is True) for one in request.outputs
    )


def make_response(
    request: InferRequest,
    answers: Sequence[np.ndarray[Any, Any]],
    outputs: Sequence[str],
    model: str,
    version: str,
) -> tuple[bytes, int | None]:
    """The body of a response; and how long its JSON is, where binary data follows."""
    described, parts = [], []
    for index, binary in request.outputs:
        answer = answers[index]
        value: dict[str, Any] = {
            "name": outputs[index],
            "datatype": datatype_of(answer.dtype),
            "shape": list(answer.shape),
        }
        if binary:
            parts.append(np.ascontiguousarray(answer, answer.dtype.newbyteorder("<")).tobytes())
            value["parameters"] = {_BINARY_SIZE: len(parts[-1])}
        else:
            value["data"] = answer.ravel().tolist()
        described.append(value)
    values: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": described}
    if request.id is not None:
        values["id"] = request.id
    try:
        text = json.dumps(values, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        raise RequestError(
            "the model answers NaN or Inf, which JSON cannot hold; ask for binary data to see them", 500
        ) from None
    return (b"".join([text, *parts]), len(text)) if parts else (text, None)
