"""Reads pickles that hold nothing but arrays and plain containers, and runs nothing that they ask for.

`.pdparams` files and CIFAR-10's batches are pickles, and an ordinary unpickler calls whatever a file
names. Here the opcodes are interpreted by `_Machine`: a file may name only what `_ADMITTED` lists, and even
those names lead to stand-ins of ours; no function of numpy or of Python is ever called with arguments out of
the file. Memory is bounded by the file's size: a valid file contains every byte that it refers to.
"""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, cast

import numpy as np

from lowbit.errors import LowbitError
from lowbit.files import open_regular

_NUMERIC_DTYPE = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248]|c8|c16)")
_SLACK = 65536  # bytes beyond the file's size, for what is shared in it


def load_arrays(file: str | Path | BinaryIO, *, name: str | None = None, encoding: str = "latin1") -> Any:
    """What a pickle of arrays holds: dicts, lists, tuples, sets, strings, numbers and numeric arrays.

    `name` is what messages call an open file. `encoding` is for the 8-bit strings of Python 2: a codec, or
    `bytes`. An OrderedDict comes back as a dict, which keeps the order too. Arrays are writable copies.

    >>> load_arrays("model.pdparams")["fc.weight"].shape  # doctest: +SKIP
    (512, 1000)
    """
    if isinstance(file, (str, Path)):
        try:
            with open_regular(file) as opened:
                return load_arrays(opened, name=name or str(file), encoding=encoding)
        except OSError as error:
            raise LowbitError(f"{file}: cannot be read ({error.strerror})") from error
    name = name or getattr(file, "name", None) or "pickle"
    try:
        return _resolve(_Machine(file, encoding).run(), {})
    except _Refused as refused:
        raise RefusedPickle(
            f"{name}: refused, {refused}. A file of weights or images holds only numeric arrays and plain "
            "containers; get it again from a source you trust, and open this one with nothing that unpickles"
        ) from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise LowbitError(
            f"{name}: not a readable pickle of arrays, probably truncated or damaged "
            f"({type(error).__name__}: {_one_line(error)}); copy or download it again"
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


class RefusedPickle(LowbitError):
    """The file is intact as far as one can see, but asks for more than arrays."""


class _Refused(Exception):
    """The file asks for something that a valid file of arrays never needs."""


class _Bounded:
    """A file that refuses, before anything is allocated, to read more than it has left."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        start = file.tell()
        self.size = file.seek(0, 2) - start
        file.seek(start)
        self._left = self.size
        self.tell = file.tell

    def read(self, count: int) -> bytes:
        if count > self._left:
            raise ValueError(f"{count} bytes are announced, {self._left} are left")
        self._left -= count
        return self._file.read(count)

    def readline(self) -> bytes:
        line = self._file.readline()
        self._left -= len(line)
        return line


class _Machine:
    """The stack machine of the pickle protocols 0 to 5, without what only objects with code need.

    Two sums are bounded by the file's size: the bytes of all arrays, and the entries of containers that are
    copied into others. Otherwise a few bytes that refer again and again to one string could fill any memory.
    """

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file = _Bounded(file)
        self._encoding = encoding
        self._left = self._file.size + _SLACK
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        for opcode, argument, _ in pickletools.genops(cast(IO[bytes], self._file)):
            if opcode.name == "STOP":
                return self._stack.pop()
            try:
                step = _STEPS[opcode.name]
            except KeyError:
                raise _Refused(f"it has the instruction {opcode.name}") from None
            step(self, argument)
        raise ValueError("it has no end")  # genops raises before

    def spend(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise _Refused("it unfolds to far more than the file holds")

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def push_text(self, value: str) -> None:
        """An 8-bit string of Python 2, which pickletools reads as latin1."""
        if self._encoding == "bytes":
            self.push(value.encode("latin1"))
        else:
            self.push(value if self._encoding == "latin1" else value.encode("latin1").decode(self._encoding))

    def mark(self, _: Any) -> None:
        self._marks.append(len(self._stack))

    def pop_to_mark(self) -> list[Any]:
        start = self._marks.pop()
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def pop(self, _: Any) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def put(self, index: Any) -> None:
        self._memo[int(index)] = self._stack[-1]

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def get(self, index: Any) -> None:
        self.push(self._memo[int(index)])

    def tuple_of(self, count: int) -> None:
        items = tuple(self._stack[len(self._stack) - count :]) if count else ()
        if len(items) != count:
            raise ValueError("a tuple has too few items")
        del self._stack[len(self._stack) - count :]
        self.push(items)

    def extend(self, items: list[Any]) -> None:
        _exactly(self._stack[-1], list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = _exactly(self._stack[-1], dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_key(key)] = value

    def add_items(self, items: list[Any]) -> None:
        _exactly(self._stack[-1], set).update(map(_key, items))

    def set_item(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self.set_items([key, value])

    def name(self, module: Any, name: Any) -> None:
        if (module, name) not in _ADMITTED:
            raise _Refused(f'it names the global "{module}.{name}"')
        self.push(_ADMITTED[module, name])

    def stack_name(self, _: Any) -> None:
        name, module = _exactly(self._stack.pop(), str), _exactly(self._stack.pop(), str)
        self.name(module, name)

    def call(self, _: Any) -> None:
        arguments, function = _exactly(self._stack.pop(), tuple), self._stack.pop()
        if type(function) is not _StandIn:
            raise _Refused("it calls something that is not a global")
        for argument in arguments:
            if isinstance(argument, (str, bytes, bytearray, list, tuple, dict, set, frozenset)):
                self.spend(len(argument))
        self.push(function(*arguments))

    def build(self, _: Any) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if not isinstance(target, (_Array, _DType)):
            raise _Refused("it tries to change a global or an object that is no array")
        if isinstance(target, _Array) and isinstance(state, tuple) and hasattr(state[-1], "__len__"):
            self.spend(len(state[-1]))
        target.set_state(state)


def _exactly(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"expected a {kind.__name__}, found {type(value).__name__}")
    return value


def _key(value: Any) -> Any:
    """A key of a dict or a member of a set. The hash of nested tuples could take for ever."""
    if value is not None and type(value) not in (str, bytes, int, float, bool):
        raise _Refused("it has a key that is neither text nor a number")
    return value


def _pushing(make: Callable[[], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.push(make())


def _steps() -> dict[str, Callable[[_Machine, Any], object]]:
    """What each opcode does; one that is not here is refused."""
    as_they_are = (
        "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE SHORT_BINUNICODE BINUNICODE "
        "BINUNICODE8 BINBYTES BINBYTES8 SHORT_BINBYTES BYTEARRAY8"
    )
    constants: dict[str, Callable[[], Any]] = {
        **{"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False},
        **{"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set},
    }
    steps: dict[str, Callable[[_Machine, Any], object]] = {
        **{name: _Machine.push for name in as_they_are.split()},
        **{name: _Machine.push_text for name in ("STRING", "BINSTRING", "SHORT_BINSTRING")},
        **{name: _pushing(make) for name, make in constants.items()},
        **{name: _Machine.put for name in ("PUT", "BINPUT", "LONG_BINPUT")},
        **{name: _Machine.get for name in ("GET", "BINGET", "LONG_BINGET")},
        **{name: lambda machine, _: None for name in ("PROTO", "FRAME")},
        "MEMOIZE": _Machine.memoize,
        "MARK": _Machine.mark,
        "POP": _Machine.pop,
        "POP_MARK": lambda machine, _: machine.pop_to_mark(),
        "DUP": lambda machine, _: machine.push(machine._stack[-1]),
        "EMPTY_TUPLE": lambda machine, _: machine.push(()),
        "TUPLE1": lambda machine, _: machine.tuple_of(1),
        "TUPLE2": lambda machine, _: machine.tuple_of(2),
        "TUPLE3": lambda machine, _: machine.tuple_of(3),
        "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_to_mark())),
        "LIST": lambda machine, _: machine.push(machine.pop_to_mark()),
        "FROZENSET": lambda machine, _: machine.push(frozenset(map(_key, machine.pop_to_mark()))),
        "APPEND": lambda machine, _: machine.extend([machine._stack.pop()]),
        "APPENDS": lambda machine, _: machine.extend(machine.pop_to_mark()),
        "SETITEM": _Machine.set_item,
        "SETITEMS": lambda machine, _: machine.set_items(machine.pop_to_mark()),
        "ADDITEMS": lambda machine, _: machine.add_items(machine.pop_to_mark()),
        "GLOBAL": lambda machine, names: machine.name(*names.split(" ", 1)),
        "STACK_GLOBAL": _Machine.stack_name,
        "REDUCE": _Machine.call,
        "NEWOBJ": _Machine.call,
        "BUILD": _Machine.build,
    }

    def dictionary(machine: _Machine, _: Any) -> None:
        items = machine.pop_to_mark()
        machine.push({})
        machine.set_items(items)

    return {**steps, "DICT": dictionary}


_STEPS = _steps()


class _StandIn:
    """A callable instead of a global."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)


class _DType:
    """A dtype as a pickle describes it: a type code, then a byte order as its state."""

    __slots__ = ("dtype",)

    def __init__(self, code: Any, *_flags: Any) -> None:
        code = _text(code)
        if not _NUMERIC_DTYPE.fullmatch(code):
            raise _Refused(f'it holds an array of dtype "{code}", which is not numeric')
        self.dtype = np.dtype(code)

    def set_state(self, state: Any) -> None:
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

    def set_state(self, state: Any) -> None:
        _version, shape, dtype, fortran, data = state
        self.value = _array(data, dtype, shape, "F" if fortran else "C")


def _array(data: Any, dtype: Any, shape: Any, order: Literal["C", "F"]) -> np.ndarray:
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


def _items(value: Any) -> Any:
    if type(value) not in (list, tuple, set, frozenset):
        raise _Refused("it makes a container out of something else")
    return value


def _dict(value: Any = ()) -> dict[Any, Any]:
    pairs = value.items() if type(value) is dict else _items(value)
    return {_key(key): one for key, one in pairs}


_NDARRAY: _StandIn = _StandIn(lambda *args: _Array(_NDARRAY, *args))
_CONTAINERS: dict[str, Callable[..., Any]] = {
    "tuple": lambda items=(): tuple(_items(items)),
    "list": lambda items=(): list(_items(items)),
    "dict": _dict,
    "set": lambda items=(): set(map(_key, _items(items))),
    "frozenset": lambda items=(): frozenset(map(_key, _items(items))),
    "bytes": _bytes,
    "bytearray": lambda *args: bytearray(_bytes(*args)),
}
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _StandIn(_DType),
    ("_codecs", "encode"): _StandIn(_bytes),
    ("collections", "OrderedDict"): _StandIn(_dict),
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
