"""oneDNN's convolutions, all three products, in the library that Paddle's own wheel carries.

Paddle serves models with oneDNN but trains without it: its CPU convolution copies every window of the image
and multiplies matrices, and its depthwise one is slower still. Here the library is called directly by its C
interface (no compiler is needed), with tensors as raw pointers in the layout NCHW, which oneDNN changes to
its own blocked ones and back. `direct` algorithms only, so that sums of integers stay exact.
"""

from __future__ import annotations

import ctypes
import threading
from ctypes import byref, c_void_p
from functools import lru_cache

from lowbit.accel import onednn_objects as dnnl
from lowbit.kernels.gemm import Geometry
from lowbit.kernels.library import advise_large_pages

# Of dnnl_types.h, version 3.
_FORWARD_TRAINING, _DIRECT = 64, 1
_SRC_MD, _DIFF_SRC_MD, _WEIGHTS_MD, _DIFF_WEIGHTS_MD, _DST_MD, _DIFF_DST_MD = 129, 130, 131, 132, 133, 134
_WEIGHTS, _DIFF_SRC, _DIFF_DST, _DIFF_WEIGHTS = 33, 129, 145, 161
_HELD = 16 << 20  # bytes of scratch memory per operand
_KEPT = 256  # prepared convolutions; a model has tens, and another batch size makes as many again


class Convolution:
    """The three products of one geometry; arguments are addresses of contiguous fp32 tensors.

    convolution = prepared(geometry)
    convolution.forward(x.data_ptr(), weight.data_ptr(), y.data_ptr())
    """

    def __init__(self, geometry: Geometry) -> None:
        engine = dnnl.engine()
        x, weight, y = geometry.input, geometry.weight, geometry.output
        top, bottom, left, right = geometry.padding
        space = (
            dnnl.Dims(*geometry.stride),
            dnnl.Dims(*(step - 1 for step in geometry.dilation)),
            dnnl.Dims(top, left),
            dnnl.Dims(bottom, right),
        )
        x_any, weight_any, y_any = (dnnl.description(shape, plain=False) for shape in (x, weight, y))
        forward, grad_input, grad_weight = (dnnl.PrimitiveDescription() for _ in range(3))
        dnnl.call(
            "convolution_forward_primitive_desc_create", byref(forward), engine, _FORWARD_TRAINING, _DIRECT,
            x_any, weight_any, None, y_any, *space, None,
        )  # fmt: skip
        dnnl.call(
            "convolution_backward_data_primitive_desc_create", byref(grad_input), engine, _DIRECT,
            x_any, weight_any, y_any, *space, forward, None,
        )  # fmt: skip
        dnnl.call(
            "convolution_backward_weights_primitive_desc_create", byref(grad_weight), engine, _DIRECT,
            x_any, weight_any, None, y_any, *space, forward, None,
        )  # fmt: skip
        plain = {"x": dnnl.description(x), "weight": dnnl.description(weight), "y": dnnl.description(y)}
        self._forward = _Product(
            forward, {dnnl.SRC: (_SRC_MD, plain["x"]), _WEIGHTS: (_WEIGHTS_MD, plain["weight"])},
            (dnnl.DST, _DST_MD, plain["y"]),
        )  # fmt: skip
        self._grad_input = _Product(
            grad_input, {_DIFF_DST: (_DIFF_DST_MD, plain["y"]), _WEIGHTS: (_WEIGHTS_MD, plain["weight"])},
            (_DIFF_SRC, _DIFF_SRC_MD, plain["x"]),
        )  # fmt: skip
        self._grad_weight = _Product(
            grad_weight, {dnnl.SRC: (_SRC_MD, plain["x"]), _DIFF_DST: (_DIFF_DST_MD, plain["y"])},
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
        self._lock = threading.Lock()  # its memories are set anew in every run
        self._primitive = dnnl.primitive(description)
        self._operands = [
            (role, _Layout(description, query, plain, incoming=True))
            for role, (query, plain) in operands.items()
        ]
        role, query, plain = result
        self._result = (role, _Layout(description, query, plain, incoming=False))

    def run(self, operands: list[int], result: int) -> None:
        with self._lock:
            arguments = [
                dnnl.Argument(role, layout.taken_from(address, place))
                for place, ((role, layout), address) in enumerate(zip(self._operands, operands, strict=True))
            ]
            role, layout = self._result
            arguments.append(dnnl.Argument(role, layout.room_for(result, len(operands))))
            dnnl.execute(self._primitive, arguments)
            layout.put_back()
            _scratch.give_back()


class _Layout:
    """One tensor of a primitive: where it lies as NCHW, and where in the layout that oneDNN prefers."""

    def __init__(self, of: c_void_p, query: int, plain: c_void_p, *, incoming: bool) -> None:
        blocked = c_void_p(dnnl.library().dnnl_primitive_desc_query_md(of, query, 0))
        self._plain = dnnl.memory(plain)
        self._blocked = self._change = None
        if not dnnl.library().dnnl_memory_desc_equal(blocked, plain):
            self._blocked = dnnl.memory(blocked)
            self._size = dnnl.library().dnnl_memory_desc_get_size(blocked)
            before, after = (plain, blocked) if incoming else (blocked, plain)
            change, engine = dnnl.PrimitiveDescription(), dnnl.engine()
            dnnl.call("reorder_primitive_desc_create", byref(change), before, engine, after, engine, None)
            self._change = dnnl.primitive(change)

    def taken_from(self, address: int, place: int) -> c_void_p:
        """An operand's values, in the layout of the primitive."""
        used = self.room_for(address, place)
        if self._change is not None:
            dnnl.change_layout(self._change, self._plain, self._blocked)
        return used

    def room_for(self, address: int, place: int) -> c_void_p:
        """Where the primitive reads or writes, `address` being where the tensor itself lies."""
        dnnl.call("memory_set_data_handle", self._plain, c_void_p(address))
        if self._blocked is None:
            return self._plain
        dnnl.call("memory_set_data_handle", self._blocked, c_void_p(_scratch.room(place, self._size)))
        return self._blocked

    def put_back(self) -> None:
        """The result's values, back in the layout of the tensor."""
        if self._change is not None:
            dnnl.change_layout(self._change, self._blocked, self._plain)


class _Scratch(threading.local):
    """Memory for blocked layouts, which live for one product only: one piece per operand and thread."""

    def __init__(self) -> None:
        self._pieces: dict[int, ctypes.Array] = {}

    def room(self, place: int, size: int) -> int:
        """The address of at least `size` bytes, aligned to a cache line."""
        piece = self._pieces.get(place)
        if piece is None or len(piece) < size + 64:
            piece = self._pieces[place] = (ctypes.c_char * (size + 64))()
            advise_large_pages(ctypes.addressof(piece), len(piece))
        return -(-ctypes.addressof(piece) // 64) * 64

    def give_back(self) -> None:
        """After a product, what is too much to hold through the whole step."""
        self._pieces = {place: piece for place, piece in self._pieces.items() if len(piece) <= _HELD}


_scratch = _Scratch()
