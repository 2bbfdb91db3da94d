"""oneDNN's convolutions and matrix products, forward and backward, in the library of Paddle's own wheel.

Paddle serves models with oneDNN but trains without it: its CPU convolution copies every window of the image
and multiplies matrices, and its depthwise one is slower still. Here the library is called directly by its C
interface (no compiler is needed), with tensors as raw pointers in the layout NCHW, which oneDNN changes to
its own blocked ones and back. `direct` algorithms only, so that sums of integers stay exact.

In bf16, operands are rounded while their layout is changed, products are added in fp32, and the results,
all of them, are rounded to bf16 and written as fp32.
"""

from __future__ import annotations

import ctypes
import math
import threading
from ctypes import byref, c_void_p
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from lowbit.accel import onednn_objects as dnnl
from lowbit.kernels.gemm import Geometry
from lowbit.kernels.library import advise_large_pages

# Of dnnl_types.h, version 3.
_FORWARD_TRAINING, _DIRECT = 64, 1
_FLOAT = 4  # bytes
_SRC_MD, _DIFF_SRC_MD, _WEIGHTS_MD, _DIFF_WEIGHTS_MD, _DST_MD, _DIFF_DST_MD = 129, 130, 131, 132, 133, 134
_WEIGHTS, _BIAS, _DIFF_SRC, _DIFF_DST, _DIFF_WEIGHTS = 33, 41, 129, 145, 161
_HELD = 16 << 20  # bytes of scratch memory per operand
_PART = 4 << 20  # bytes of a part of a larger one
KEPT = 256  # prepared convolutions; a model has tens, and another batch size makes as many again


class PreparedConvolution:
    """The three products of one geometry, in fp32 or bf16; arguments are addresses of contiguous fp32.

    convolution = prepared(geometry)
    convolution.forward(x.data_ptr(), weight.data_ptr(), y.data_ptr())
    """

    def __init__(self, geometry: Geometry, *, bf16: bool = False) -> None:
        engine = dnnl.engine()
        x, weight, y = geometry.input, geometry.weight, geometry.output
        top, bottom, left, right = geometry.padding
        space = (
            dnnl.Dims(*geometry.stride),
            dnnl.Dims(*(step - 1 for step in geometry.dilation)),
            dnnl.Dims(top, left),
            dnnl.Dims(bottom, right),
        )
        x_any, weight_any, y_any = (dnnl.free_description(shape, bf16=bf16) for shape in (x, weight, y))
        forward, grad_weight = dnnl.PrimitiveDescription(), dnnl.PrimitiveDescription()
        dnnl.call(
            "convolution_forward_primitive_desc_create", byref(forward), engine, _FORWARD_TRAINING, _DIRECT,
            x_any, weight_any, None, y_any, *space, None,
        )  # fmt: skip
        for wanted in ("jit_dw", None) if geometry.groups == geometry.input[1] > 1 else (None,):
            grad_input = dnnl.PrimitiveDescription()
            dnnl.call(
                "convolution_backward_data_primitive_desc_create", byref(grad_input), engine, _DIRECT,
                x_any, weight_any, y_any, *space, forward, None,
            )  # fmt: skip
            # For a depthwise convolution with a stride in bf16, its first choice takes ten times as long.
            if wanted is None or dnnl.take_implementation(grad_input, wanted):
                break
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


class ConvolutionInParts:
    """The same for a large batch, a few images at a time: their blocked layouts stay in the cache.

    dW is the sum of that of the parts, added up in order.
    """

    def __init__(self, geometry: Geometry, images: int, *, bf16: bool = False) -> None:
        (batch, *x_shape), y_shape = geometry.input, geometry.output[1:]
        self._size = math.prod(geometry.weight)
        self._parts = [  # with how far into X and Y they begin, in bytes
            (
                prepared(replace(geometry, input=(min(images, batch - first), *x_shape)), bf16=bf16),
                first * math.prod(x_shape) * _FLOAT,
                first * math.prod(y_shape) * _FLOAT,
            )
            for first in range(0, batch, images)
        ]

    def forward(self, x: int, weight: int, y: int) -> None:
        """Y, from X and W."""
        for part, into_x, into_y in self._parts:
            part.forward(x + into_x, weight, y + into_y)

    def grad_input(self, dy: int, weight: int, dx: int) -> None:
        """dX, from dY and W."""
        for part, into_x, into_y in self._parts:
            part.grad_input(dy + into_y, weight, dx + into_x)

    def grad_weight(self, x: int, dy: int, dweight: int) -> None:
        """dW, from X and dY."""
        total = np.ctypeslib.as_array((ctypes.c_float * self._size).from_address(dweight))
        total[:] = 0
        of_part = np.empty_like(total)
        for part, into_x, into_y in self._parts:
            part.grad_weight(x + into_x, dy + into_y, of_part.ctypes.data)
            total += of_part


@lru_cache(maxsize=KEPT)
def prepared(geometry: Geometry, *, bf16: bool = False) -> PreparedConvolution | ConvolutionInParts:
    """The convolution for a geometry; preparing takes milliseconds, so the last ones are kept."""
    batch = geometry.input[0]
    largest = max(math.prod(shape) * _FLOAT for shape in (geometry.input, geometry.output))
    if largest <= _HELD or batch == 1:
        return PreparedConvolution(geometry, bf16=bf16)
    return ConvolutionInParts(geometry, max(1, min(batch - 1, _PART * batch // largest)), bf16=bf16)


class Factors(NamedTuple):
    """The shapes of C = A B for each of a batch of matrices: A is [m, k], B is [k, n].

    A transposed factor is the transpose of what is in memory.
    """

    batch: int
    m: int
    k: int
    n: int
    transposed_a: bool = False
    transposed_b: bool = False


class MatrixProduct:
    """C = A B + bias and its gradients in bf16; arguments are addresses of contiguous fp32 tensors.

    product = prepared_matrices(Factors(1, 8, 16, 4))
    product.forward(a.data_ptr(), b.data_ptr(), None, c.data_ptr())
    """

    def __init__(self, factors: Factors, *, has_bias: bool = False) -> None:
        batch, m, k, n, *transposed = factors
        a, b = (
            _Matrices(batch, *shape, is_transposed=is_transposed)
            for shape, is_transposed in zip(((m, k), (k, n)), transposed, strict=True)
        )
        c = _Matrices(batch, m, n)
        self._forward = _matrix_product(a, b, c, has_bias=has_bias)
        self._grad_a = _matrix_product(c, b.transpose(), a)
        self._grad_b = _matrix_product(a.transpose(), c, b)

    def forward(self, a: int, b: int, bias: int | None, c: int) -> None:
        """C, from A, B and the bias, one number per column."""
        self._forward.run([a, b] if bias is None else [a, b, bias], c)

    def grad_a(self, dc: int, b: int, da: int) -> None:
        """dA, from dC and B."""
        self._grad_a.run([dc, b], da)

    def grad_b(self, a: int, dc: int, db: int) -> None:
        """dB, from A and dC."""
        self._grad_b.run([a, dc], db)


class _Matrices:
    """Matrices [rows, columns] in memory, or the transposes of those that are."""

    def __init__(self, batch: int, rows: int, columns: int, *, is_transposed: bool = False) -> None:
        self._sizes = batch, rows, columns, is_transposed
        self.shape = batch, rows, columns
        strides = (1, rows) if is_transposed else (columns, 1)
        self.plain = dnnl.description(self.shape, (rows * columns, *strides))
        self.free = dnnl.free_description(self.shape, bf16=True)

    def transpose(self) -> _Matrices:
        batch, rows, columns, is_transposed = self._sizes
        return _Matrices(batch, columns, rows, is_transposed=not is_transposed)


def _matrix_product(a: _Matrices, b: _Matrices, c: _Matrices, *, has_bias: bool = False) -> _Product:
    made, bias = dnnl.PrimitiveDescription(), dnnl.description((1, 1, c.shape[2]))
    dnnl.call(
        "matmul_primitive_desc_create", byref(made), dnnl.engine(),
        a.free, b.free, bias if has_bias else None, c.free, None,
    )  # fmt: skip
    operands: dict[int, tuple[int | None, Any]] = {
        dnnl.SRC: (_SRC_MD, a.plain),
        _WEIGHTS: (_WEIGHTS_MD, b.plain),
    }
    if has_bias:
        operands[_BIAS] = (None, bias)
    return _Product(made, operands, (dnnl.DST, _DST_MD, c.plain))


@lru_cache(maxsize=KEPT)
def prepared_matrices(factors: Factors, *, has_bias: bool = False) -> MatrixProduct:
    """The matrix product of these shapes; the last ones are kept."""
    return MatrixProduct(factors, has_bias=has_bias)


class _Product:
    """A primitive, with the changes of layout before and after it."""

    def __init__(
        self,
        description: c_void_p,
        operands: dict[int, tuple[int | None, c_void_p]],
        result: tuple[int, int, c_void_p],
    ) -> None:
        self._lock = threading.Lock()  # its memories are set again in every run
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
    """One tensor of a primitive: where it is in memory, and where in the layout that oneDNN prefers.

    That is asked by `query`; without one, the primitive takes the tensor as it is.
    """

    def __init__(self, of: c_void_p, query: int | None, plain: c_void_p, *, incoming: bool) -> None:
        blocked = plain
        if query is not None:
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
        """Where the primitive reads or writes, `address` being the address of the tensor itself."""
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
