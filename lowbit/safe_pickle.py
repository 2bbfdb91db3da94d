"""Reads pickles that hold nothing but arrays and plain containers, and runs nothing that they ask for.

`.pdparams` files and CIFAR-10's batches are pickles, and an ordinary unpickler calls whatever a file
names. Here a file may name only what `_ADMITTED` lists, and even those names lead to stand-ins of ours:
no function of numpy or of Python is ever called with arguments out of the file.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lowbit.errors import LowbitError

_NUMERIC_DTYPE = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248]|c8|c16)")


def load_arrays(file: str | Path | BinaryIO, *, name: str | None = None, encoding: str = "latin1") -> Any:
    """What a pickle of arrays holds: dicts, lists, tuples, sets, strings, numbers and numeric arrays.

    `name` is what messages call an open file. `encoding` is for the 8-bit strings of Python 2. An
    OrderedDict comes back as a dict, which keeps the order too. Arrays are writable copies.

    >>> load_arrays("model.pdparams")["fc.weight"].shape  # doctest: +SKIP
    (512, 1000)
    """
    if isinstance(file, (str, Path)):
        try:
            with open(file, "rb") as opened:
                return load_arrays(opened, name=name or str(file), encoding=encoding)
        except OSError as error:
            raise LowbitError(f"{file}: cannot be read ({error.strerror})") from error
    name = name or getattr(file, "name", None) or "pickle"
    try:
        return _resolve(_Unpickler(file, encoding=encoding).load(), {})
    except _Refused as refused:
        raise RefusedPickle(
            f"{name}: refused, {refused}. A file of weights or images holds only numeric arrays and plain "
            "containers; get it again from a source you trust, and open this one with nothing that unpickles"
        ) from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise LowbitError(
            f"{name}: not a readable pickle of arrays, probably truncated or damaged "
            f"({type(error).__name__}: {error}); copy or download it again"
        ) from error


class RefusedPickle(LowbitError):
    """The file is intact as far as one can see, but asks for more than arrays."""


class _Refused(Exception):
    """The file asks for something that an honest file of arrays never needs."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise _Refused(f'it names the global "{module}.{name}"') from None

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("it refers to an object outside the file")


class _StandIn:
    """A callable in the place of a global; has no attribute that a pickle's BUILD could change."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __setstate__(self, state: Any) -> None:
        raise _Refused("it tries to change a global")


class _DType:
    """A dtype as a pickle describes it: a type code, then a byte order as its state."""

    __slots__ = ("dtype",)

    def __init__(self, code: Any, *_flags: Any) -> None:
        code = _text(code)
        if not _NUMERIC_DTYPE.fullmatch(code):
            raise _Refused(f'it holds an array of dtype "{code}", which is not numeric')
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        byte_order = _text(state[1])
        if any(state[2:5]):  # sub-array, field names, fields
            raise _Refused("it holds an array of a structured dtype")
        self.dtype = self.dtype.newbyteorder(byte_order)


class _Array:
    """An array as a pickle describes it: made empty, then given shape, dtype and bytes as its state."""

    __slots__ = ("value",)

    def __init__(self, subtype: Any, *_shape_and_code: Any) -> None:
        if subtype is not _NDARRAY:
            raise _Refused("it holds a subclass of a numpy array")

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran, data = state
        self.value = _array(data, dtype, shape, "F" if fortran else "C")


def _array(data: Any, dtype: Any, shape: Any, order: str) -> np.ndarray:
    if not isinstance(dtype, _DType):
        raise _Refused("it holds an array without a dtype")
    if not isinstance(data, (bytes, bytearray, str)):
        raise _Refused("it holds an array of objects")
    if not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError(f"an array has the impossible shape {shape}")
    data = _bytes(data)
    if math.prod(shape) * dtype.dtype.itemsize != len(data):
        raise ValueError(f"an array of shape {shape} and type {dtype.dtype} has {len(data)} bytes")
    return np.frombuffer(data, dtype.dtype).reshape(shape, order=order).copy(order="K")


def _scalar(dtype: Any, data: Any) -> Any:
    return _array(data, dtype, (), "C")[()]


def _text(value: Any) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


def _bytes(value: Any = b"", encoding: Any = "latin1") -> bytes:
    # Protocols below 3 write bytes as text plus a codec; any codec but this one is a trick.
    if _text(encoding).replace("-", "").replace("_", "").lower() not in ("latin1", "iso88591"):
        raise _Refused(f'it asks for the codec "{encoding}"')
    if isinstance(value, str):
        return value.encode("latin1")
    if not isinstance(value, (bytes, bytearray)):  # bytes(10**12) would be a request for memory
        raise _Refused("it makes bytes out of something else")
    return bytes(value)


_NDARRAY = _StandIn(lambda *args: _Array(_NDARRAY, *args))
_CONTAINERS: dict[str, Callable[..., Any]] = {
    "tuple": tuple,
    "list": list,
    "dict": dict,
    "set": set,
    "frozenset": frozenset,
    "bytes": _bytes,
    "bytearray": lambda *args: bytearray(_bytes(*args)),
}
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _StandIn(_DType),
    ("_codecs", "encode"): _StandIn(_bytes),
    ("collections", "OrderedDict"): _StandIn(dict),
    **{
        (module, name): _StandIn(call)
        for module in ("numpy.core.multiarray", "numpy._core.multiarray")
        for name, call in (("_reconstruct", _Array), ("scalar", _scalar))
    },
    **{
        (module, name): _StandIn(call)
        for module in ("builtins", "__builtin__")  # the latter is Python 2's name
        for name, call in _CONTAINERS.items()
    },
}


def _resolve(value: Any, done: dict[int, Any]) -> Any:
    """The same structure with real arrays; `done` keeps shared parts shared, so a small file stays small."""
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, _Array):
        result: Any = value.value
    elif isinstance(value, (_StandIn, _DType)):
        raise _Refused("it holds a bare global or dtype")
    elif type(value) is dict:
        done[id(value)] = value
        for key in value:
            hash(_resolve(key, done))  # a stand-in for an array can be hashed, an array cannot
            value[key] = _resolve(value[key], done)
        result = value
    elif type(value) is list:
        done[id(value)] = value
        value[:] = [_resolve(item, done) for item in value]
        result = value
    elif type(value) is tuple:
        result = tuple(_resolve(item, done) for item in value)
    elif type(value) in (set, frozenset):
        result = type(value)(_resolve(item, done) for item in value)
    else:
        result = value
    done[id(value)] = result
    return result
