"""Mixed precision: the operators that are rounded, and the numerics of bf16 and fp16 on any device.

Paddle's own autocast needs kernels for the narrow type, and its CPU build has none. Here operands are
rounded to the grid and held in fp32, so that fp32 kernels multiply exactly the values that narrow hardware
would. Operators of `paddle._C_ops` are wrapped while a `with` is open, and act in its thread only.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor, _C_ops

from lowbit.accel import bf16_products
from lowbit.errors import LowbitError
from lowbit.numerics.grid import Grid, round_to_grid

# O1 and O2: operands and results on the grid. Each with the arguments that are no factors of a product (a
# bias, an addend, sampling positions) and stay fp32, by place and by name.
PRODUCTS: dict[str, dict[int, str]] = {
    "conv2d": {},
    "conv2d_transpose": {},
    "conv3d": {},
    "conv3d_transpose": {},
    "depthwise_conv2d": {},
    "depthwise_conv2d_transpose": {},
    "deformable_conv": {1: "offset", 3: "mask"},
    "linear": {2: "bias"},
    "linear_v2": {2: "bias"},
    "matmul": {},
    "matmul_with_flatten": {},
    "bmm": {},
    "mv": {},
    "dot": {},
    "addmm": {0: "input"},
    "baddbmm": {0: "input"},
    "bilinear": {3: "bias"},
    "einsum": {},
    "multi_dot": {},
}
PRODUCT_METHODS = ("__matmul__", "__rmatmul__")

# O2 only: computed in fp32 inside, as narrow kernels do, with the result on the grid.
_ARITHMETIC = ("add", "subtract", "multiply", "divide", "scale", "add_n", "lerp", "sqrt", "dropout")
_ACTIVATIONS = (
    *("sigmoid", "hardsigmoid", "logsigmoid", "hardswish", "silu", "swish", "gelu", "mish", "tanh", "stanh"),
    *("relu6", "leaky_relu", "prelu", "rrelu", "elu", "selu", "celu", "hardtanh", "softsign"),
)
_POOLS = ("pool2d", "pool3d", "lp_pool2d")
# Their statistics, which are further results of the same operators, stay fp32.
_NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
O2_ROUNDED = frozenset((*_ARITHMETIC, *_ACTIVATIONS, *_POOLS, *_NORMS))
O2_METHODS = (
    *("__add__", "__radd__", "__sub__", "__rsub__"),
    *("__mul__", "__rmul__", "__truediv__", "__rtruediv__"),
)

# Never rounded: where narrow numbers are dangerous. What no list names (relu, max, reshape, concat, slices)
# makes no new values, so that it stays on the grid by itself.
_STEEP = (
    *("tan", "acos", "asin", "sinh", "cosh", "atanh", "tanh_shrink", "erfinv", "exp", "expm1"),
    *("log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "pow", "elementwise_pow", "square"),
)
_REDUCTIONS = (
    *("sum", "mean", "mean_all", "prod", "cumsum", "cumprod", "logcumsumexp", "logsumexp", "var", "std"),
    *("dist", "p_norm", "frobenius_norm", "renorm", "squared_l2_norm"),
)
_PROBABILITIES = ("softmax", "log_softmax", "gumbel_softmax", "softplus", "label_smooth")
_LOSSES = (
    *(
        "cross_entropy_with_softmax",
        "sigmoid_cross_entropy_with_logits",
        "bce_loss",
        "nll_loss",
        "kldiv_loss",
    ),
    *("huber_loss", "hinge_loss", "log_loss", "hsigmoid_loss", "margin_cross_entropy"),
    *("c_softmax_with_cross_entropy", "c_softmax_with_multi_label_cross_entropy"),
)
_LOOKUPS = (
    *("linear_interp", "nearest_interp", "bilinear_interp", "bicubic_interp", "trilinear_interp"),
    *("embedding", "scatter"),
)
STAYS_FP32 = frozenset((*_STEEP, *_REDUCTIONS, *_PROBABILITIES, *_LOSSES, *_LOOKUPS))

# Whole recurrent networks in one kernel: the products inside are out of reach, so they are refused.
OPAQUE = ("rnn", "lstm", "gru", "cudnn_lstm")


# Emulated mixed precision: inside a `with`, Paddle's operators compute on a grid.
#
# Paddle's autocast needs kernels for the narrow type, and its CPU build has none. Here operands are rounded
# to the grid and stored in fp32, so that fp32 kernels multiply the values that narrow hardware would, and
# accumulate in fp32 as it does; the result is rounded again. Rounding is a pair of casts, which also rounds
# gradients: all three products of a layer are covered.
#
# Python calls operators as attributes of `paddle._C_ops`, and `a @ b` by methods of the tensor type; both
# are wrapped while a `with` is open, in every thread, and wrappers act only in threads that opened one. In-
# place operators (`add_`) are not wrapped: the next product rounds their results.


class _Open(threading.local):
    """The grids of the open `with`s of one thread, innermost last, each with its level, and if native."""

    def __init__(self) -> None:
        self.stack: list[tuple[Grid, str, bool]] = []


_open = _Open()
_lock = threading.Lock()
_users = {"O1": 0, "O2": 0}  # O2 counts for both
_originals: dict[str, list[tuple[Any, str, Any]]] = {"O1": [], "O2": []}


@contextmanager
def rounding(grid: Grid, level: str, *, native: bool = False) -> Iterator[None]:
    """Inside the `with`, products (O1) or nearly everything (O2) is computed on the grid; O0 rounds nothing.

    `native`: convolutions and matrix products of bf16 by the processor's instructions, which must have them
    (`accel.bf16_products.why_not`); what is not covered is emulated. May be nested, and then the innermost
    counts. Nothing stays wrapped after the last one is left.

    >>> with rounding(BF16, "O1"):
    ...     loss = criterion(model(images), labels)
    """
    _open.stack.append((grid, level, native))
    levels = ("O1", "O2") if level == "O2" else ("O1",)
    for needed in levels:
        _acquire(needed)
    try:
        yield
    finally:
        _open.stack.pop()
        for needed in levels:
            _release(needed)


def _acquire(level: str) -> None:
    """Wrap the operators that a level adds. At O1, those between the products stay as they are."""
    with _lock:
        _users[level] += 1
        if _users[level] > 1:
            return
        if level == "O2":
            for name in O2_ROUNDED:
                _replace(_C_ops, name, _wrap_o2, level)
            for name in O2_METHODS:
                _replace(Tensor, name, _wrap_o2, level)
            return
        for name, spared in PRODUCTS.items():
            _replace(_C_ops, name, functools.partial(_wrap_product, name=name, spared=spared), level)
        for name in OPAQUE:
            _replace(_C_ops, name, _wrap_opaque, level)
        for name in PRODUCT_METHODS:
            _replace(Tensor, name, functools.partial(_wrap_product, name=name, spared={}), level)


def _release(level: str) -> None:
    with _lock:
        _users[level] -= 1
        if _users[level] == 0:
            while _originals[level]:
                owner, name, original = _originals[level].pop()
                setattr(owner, name, original)


def _replace(
    owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]], level: str
) -> None:
    original = getattr(owner, name)
    _originals[level].append((owner, name, original))
    setattr(owner, name, wrap(original))


def _active() -> tuple[Grid | None, str, bool]:
    grid, level, native = _open.stack[-1] if _open.stack else (None, "O0", False)
    return (grid, level, native) if level != "O0" else (None, level, False)


def _wrap_product(original: Callable[..., Any], name: str, spared: dict[int, str]) -> Callable[..., Any]:
    names = frozenset(spared.values())

    @functools.wraps(original)
    def product(*args: Any, **kwargs: Any) -> Any:
        grid, _, native = _active()
        if grid is None:
            return original(*args, **kwargs)
        if native and (computed := bf16_products.compute(name, args, kwargs)) is not None:
            return computed
        args = tuple(a if place in spared else _rounded(a, grid) for place, a in enumerate(args))
        kwargs = {name: a if name in names else _rounded(a, grid) for name, a in kwargs.items()}
        return _result_rounded(original(*args, **kwargs), grid)

    return product


def _wrap_o2(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def rounded(*args: Any, **kwargs: Any) -> Any:
        grid, level, _ = _active()
        result = original(*args, **kwargs)
        return result if grid is None or level != "O2" else _result_rounded(result, grid)

    return rounded


def _wrap_opaque(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def refused(*args: Any, **kwargs: Any) -> Any:
        grid, level, _ = _active()
        if grid is not None:
            raise LowbitError(
                f"{level} mixed precision cannot round the products inside a whole recurrent layer on this "
                "device: build it from cells (paddle.nn.LSTMCell, GRUCell), or train without amp_level"
            )
        return original(*args, **kwargs)

    return refused


def _rounded(value: Any, grid: Grid) -> Any:
    # A value of a static graph is not a Tensor: a model exported inside a `with` comes out unrounded.
    if isinstance(value, Tensor):
        return round_to_grid(value, grid) if value.dtype == paddle.float32 else value
    if isinstance(value, (list, tuple)):  # einsum and multi_dot take their factors as a list
        return [_rounded(item, grid) for item in value]
    return value


def _result_rounded(result: Any, grid: Grid) -> Any:
    """The result with its first tensor on the grid; further ones are statistics, masks and caches."""
    if isinstance(result, (list, tuple)):
        return type(result)((_rounded(result[0], grid), *result[1:]))
    return _rounded(result, grid)


# Entering and leaving mixed precision: `paddle.amp` on a GPU, emulated on a CPU.


# Under paddle.amp, convolutions that are not on its list take the widest type of their operands; a quantized
# layer's weight comes in fp32, so that they would not be computed in the narrow type at all.
_PRODUCTS = ("conv2d", "depthwise_conv2d", "conv2d_transpose", "depthwise_conv2d_transpose")


@dataclass(frozen=True)
class AmpContext:
    """A level, a grid, and where.

    >>> amp = AmpContext("O1", BF16, on_gpu=False)
    >>> with amp.inside():
    ...     with amp.outside():
    ...         y = paddle.to_tensor([[1.001]]) @ paddle.to_tensor([[1.0]])
    >>> y.item()
    1.0010000467300415
    """

    level: str
    grid: Grid
    on_gpu: bool
    native: bool = False  # bf16 on a CPU by its instructions

    def inside(self) -> AbstractContextManager[None]:
        """Products (O1) or nearly everything (O2) is computed on the grid."""
        if self.level == "O0":
            return nullcontext()
        if self.on_gpu:
            return paddle.amp.auto_cast(level=self.level, dtype=self.grid.storage)
        return rounding(self.grid, self.level, native=self.native)

    def product(self) -> AbstractContextManager[None]:
        """Around one product of a quantized layer, whatever the types of its operands."""
        if self.on_gpu and self.level != "O0":
            return paddle.amp.auto_cast(
                level=self.level, dtype=self.grid.storage, custom_white_list=_PRODUCTS
            )
        return self.inside()

    def outside(self) -> AbstractContextManager[None]:
        """fp32, although mixed precision is on around it."""
        return paddle.amp.auto_cast(enable=False) if self.on_gpu else rounding(self.grid, "O0")


def unscale_in_place(gradients: list[Tensor], scale: float) -> bool:
    """Divide gradients by the loss scale; whether all are finite. If not, their values are of no use."""
    _, found = _C_ops.check_finite_and_unscale_(gradients, paddle.to_tensor([scale]))
    return not bool(found)


def squared_norm(x: Tensor) -> Tensor:
    """The sum of squares, in one pass."""
    return _C_ops.squared_l2_norm(x)
