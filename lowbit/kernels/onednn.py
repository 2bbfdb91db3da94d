"""oneDNN's convolutions, all three products, in the library that Paddle's own wheel carries.

Paddle serves models with oneDNN but trains without it: its CPU convolution copies every window of the image
and multiplies matrices, and its depthwise one is slower still. Here the library is called directly by its C
interface (no compiler is needed), with tensors as raw pointers in the layout NCHW, which oneDNN changes to
its own blocked ones and back. `direct` algorithms only, so that sums of integers stay exact.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from lowbit.errors import LowbitError

# Of dnnl_types.h, version 3.
_CPU, _F32, _ANY_LAYOUT, _IN_ORDER = 1, 3, 1, 1
_FORWARD_TRAINING, _DIRECT = 64, 1
_SRC_MD, _DIFF_SRC_MD, _WEIGHTS_MD, _DIFF_WEIGHTS_MD, _DST_MD, _DIFF_DST_MD = 129, 130, 131, 132, 133, 134
_SRC, _DST, _WEIGHTS, _DIFF_SRC, _DIFF_DST, _DIFF_WEIGHTS = 1, 17, 33, 129, 145, 161
_Dims = c_int64 * 12
_KEPT = 256  # prepared convolutions; a model has tens, and another batch size makes as many again


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Everything that a prepared convolution is made for; `padding` is top, bottom, left, right."""

    input: tuple[int, int, int, int]
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def output(self) -> tuple[int, int, int, int]:
        """The shape of Y."""
        batch, _, height, width = self.input
        top, bottom, left, right = self.padding
        sides = [
            (size + before + after - dilation * (kernel - 1) - 1) // stride + 1
            for size, before, after, dilation, kernel, stride in (
                (height, top, bottom, self.dilation[0], self.kernel[0], self.stride[0]),
                (width, left, right, self.dilation[1], self.kernel[1], self.stride[1]),
            )
        ]
        return (batch, self.outputs, *sides)

    @property
    def weight(self) -> tuple[int, ...]:
        """The shape of W as oneDNN wants it: with the groups in front."""
        per_group = (self.input[1] // self.groups, *self.kernel)
        if self.groups == 1:
            return (self.outputs, *per_group)
        return (self.groups, self.outputs // self.groups, *per_group)


class _Owned(c_void_p):
    """An object of the library's, given back when Python forgets it."""

    kind = ""

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.value and not is_finalizing():  # at the very end, this module's names are gone
            getattr(_library(), f"dnnl_{self.kind}_destroy")(self)


class _Memory(_Owned):
    kind = "memory"


class _MemoryDescription(_Owned):
    kind = "memory_desc"


class _Primitive(_Owned):
    kind = "primitive"


class _PrimitiveDescription(_Owned):
    kind = "primitive_desc"


class _Version(Structure):
    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int), ("hash", c_char_p)] + [
        (name, c_uint) for name in ("cpu_runtime", "gpu_runtime")
    ]


class _Argument(Structure):
    _fields_ = [("role", c_int), ("memory", c_void_p)]


@cache
def why_missing() -> str | None:
    """Why the library cannot be used here; None when it can."""
    try:
        found = _library().dnnl_version().contents
    except (OSError, AttributeError) as error:
        return f"Paddle's wheel has no usable oneDNN here ({error})"
    return None if found.major == 3 else f"Paddle's wheel has oneDNN {version()}, lowbit knows version 3"


@cache
def version() -> str:
    """Such as `3.6.2`; the last bits of a sum may differ between two of them."""
    found = _library().dnnl_version().contents
    return f"{found.major}.{found.minor}.{found.patch}"


class Convolution:
    """The three products of one geometry; arguments are addresses of contiguous fp32 tensors.

    convolution = prepared(geometry)
    convolution.forward(x.data_ptr(), weight.data_ptr(), y.data_ptr())
    """

    def __init__(self, geometry: Geometry) -> None:
        call, engine = _call, _engine()
        x, weight, y = geometry.input, geometry.weight, geometry.output
        top, bottom, left, right = geometry.padding
        space = (
            _Dims(*geometry.stride),
            _Dims(*(step - 1 for step in geometry.dilation)),
            _Dims(top, left),
            _Dims(bottom, right),
        )
        x_any, weight_any, y_any = (_description(shape, plain=False) for shape in (x, weight, y))
        forward, grad_input, grad_weight = (_PrimitiveDescription() for _ in range(3))
        call(
            "convolution_forward_primitive_desc_create", byref(forward), engine, _FORWARD_TRAINING, _DIRECT,
            x_any, weight_any, None, y_any, *space, None,
        )  # fmt: skip
        call(
            "convolution_backward_data_primitive_desc_create", byref(grad_input), engine, _DIRECT,
            x_any, weight_any, y_any, *space, forward, None,
        )  # fmt: skip
        call(
            "convolution_backward_weights_primitive_desc_create", byref(grad_weight), engine, _DIRECT,
            x_any, weight_any, None, y_any, *space, forward, None,
        )  # fmt: skip
        plain = {"x": _description(x), "weight": _description(weight), "y": _description(y)}
        self._forward = _Product(
            forward, {_SRC: (_SRC_MD, plain["x"]), _WEIGHTS: (_WEIGHTS_MD, plain["weight"])},
            (_DST, _DST_MD, plain["y"]),
        )  # fmt: skip
        self._grad_input = _Product(
            grad_input, {_DIFF_DST: (_DIFF_DST_MD, plain["y"]), _WEIGHTS: (_WEIGHTS_MD, plain["weight"])},
            (_DIFF_SRC, _DIFF_SRC_MD, plain["x"]),
        )  # fmt: skip
        self._grad_weight = _Product(
            grad_weight, {_SRC: (_SRC_MD, plain["x"]), _DIFF_DST: (_DIFF_DST_MD, plain["y"])},
            (_DIFF_WEIGHTS, _DIFF_WEIGHTS_MD, plain["weight"]),
        )  # fmt: skip

    def forward(self, x: int, weight: int, y: int) -> None:
        """Y, from X and W."""
        self._forward.run([x, weight], y)

    def grad_input(self, dy: int, weight: int, dx: int) -> None:
        """dX, from dY and W."""
        self._grad_input.run([dy, weight], dx)

    def grad_weight(self, x: int, dy: int, dweight: int) -> None:
        """dW, from X and dY."""
        self._grad_weight.run([x, dy], dweight)


@lru_cache(maxsize=_KEPT)
def prepared(geometry: Geometry) -> Convolution:
    """The convolution for a geometry; preparing takes milliseconds, so the last ones are kept."""
    return Convolution(geometry)


class _Product:
    """A primitive, with the changes of layout before and after it."""

    def __init__(
        self,
        description: c_void_p,
        operands: dict[int, tuple[int, c_void_p]],
        result: tuple[int, int, c_void_p],
    ) -> None:
        self._primitive = _primitive(description)
        self._operands = [
            (role, _Layout(description, query, plain, incoming=True))
            for role, (query, plain) in operands.items()
        ]
        role, query, plain = result
        self._result = (role, _Layout(description, query, plain, incoming=False))

    def run(self, operands: list[int], result: int) -> None:
        arguments = [
            _Argument(role, layout.taken_from(address, place))
            for place, ((role, layout), address) in enumerate(zip(self._operands, operands, strict=True))
        ]
        role, layout = self._result
        arguments.append(_Argument(role, layout.room_for(result, len(operands))))
        _execute(self._primitive, arguments)
        layout.put_back()


class _Layout:
    """One tensor of a primitive: where it lies as NCHW, and where in the layout that oneDNN prefers."""

    def __init__(self, of: c_void_p, query: int, plain: c_void_p, *, incoming: bool) -> None:
        blocked = c_void_p(_library().dnnl_primitive_desc_query_md(of, query, 0))
        self._plain = _memory(plain)
        self._blocked = self._change = None
        if not _library().dnnl_memory_desc_equal(blocked, plain):
            self._blocked = _memory(blocked)
            self._size = _library().dnnl_memory_desc_get_size(blocked)
            before, after = (plain, blocked) if incoming else (blocked, plain)
            change, engine = _PrimitiveDescription(), _engine()
            _call("reorder_primitive_desc_create", byref(change), before, engine, after, engine, None)
            self._change = _primitive(change)

    def taken_from(self, address: int, place: int) -> c_void_p:
        """An operand's values, in the layout of the primitive."""
        used = self.room_for(address, place)
        if self._change is not None:
            _execute(self._change, [_Argument(_SRC, self._plain), _Argument(_DST, self._blocked)])
        return used

    def room_for(self, address: int, place: int) -> c_void_p:
        """Where the primitive reads or writes, `address` being where the tensor itself lies."""
        _call("memory_set_data_handle", self._plain, c_void_p(address))
        if self._blocked is None:
            return self._plain
        _call("memory_set_data_handle", self._blocked, c_void_p(_scratch.room(place, self._size)))
        return self._blocked

    def put_back(self) -> None:
        """The result's values, back in the layout of the tensor."""
        if self._change is not None:
            _execute(self._change, [_Argument(_SRC, self._blocked), _Argument(_DST, self._plain)])


class _Scratch(threading.local):
    """Memory for blocked layouts, which live for one product only: one piece per operand and thread."""

    def __init__(self) -> None:
        self._pieces: dict[int, ctypes.Array] = {}

    def room(self, place: int, size: int) -> int:
        """The address of at least `size` bytes, aligned to a cache line."""
        piece = self._pieces.get(place)
        if piece is None or len(piece) < size + 64:
            piece = self._pieces[place] = (ctypes.c_char * (size + 64))()
        return -(-ctypes.addressof(piece) // 64) * 64


_scratch = _Scratch()


@cache
def _library() -> ctypes.CDLL:
    import paddle

    folder = Path(paddle.__file__).parent / "libs"
    library = ctypes.CDLL(str(next(iter(sorted(folder.glob("libdnnl.so*"))), folder / "libdnnl.so.3")))
    library.dnnl_version.restype = POINTER(_Version)
    library.dnnl_primitive_desc_query_md.restype = c_void_p
    library.dnnl_primitive_desc_query_md.argtypes = [c_void_p, c_int, c_int]
    library.dnnl_memory_desc_get_size.restype = c_size_t
    library.dnnl_memory_desc_get_size.argtypes = [c_void_p]
    library.dnnl_memory_desc_equal.argtypes = [c_void_p, c_void_p]
    return library


def _call(name: str, *arguments: object) -> None:
    status = getattr(_library(), f"dnnl_{name}")(*arguments)
    if status != 0:
        raise LowbitError(
            f"oneDNN's {name} failed with status {status}; train with Global.fast_convolutions=False"
        )


@cache
def _engine() -> c_void_p:
    engine = c_void_p()
    _call("engine_create", byref(engine), _CPU, c_size_t(0))
    return engine


@cache
def _stream() -> c_void_p:
    stream = c_void_p()
    _call("stream_create", byref(stream), _engine(), _IN_ORDER)
    return stream


def _description(shape: tuple[int, ...], *, plain: bool = True) -> _MemoryDescription:
    """A tensor of this shape, one axis after the other in memory, or in whichever layout is fastest."""
    description = _MemoryDescription()
    if not plain:
        _call(
            "memory_desc_create_with_tag", byref(description), len(shape), _Dims(*shape), _F32, _ANY_LAYOUT
        )
        return description
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    _call(
        "memory_desc_create_with_strides",
        byref(description), len(shape), _Dims(*shape), _F32, _Dims(*strides),
    )  # fmt: skip
    return description


def _memory(description: c_void_p) -> _Memory:
    memory = _Memory()
    _call("memory_create", byref(memory), description, _engine(), None)
    return memory


def _primitive(description: c_void_p) -> _Primitive:
    primitive = _Primitive()
    _call("primitive_create", byref(primitive), description)
    return primitive


def _execute(primitive: c_void_p, arguments: list[_Argument]) -> None:
    array = (_Argument * len(arguments))(*arguments)
    _call("primitive_execute", primitive, _stream(), len(arguments), array)
