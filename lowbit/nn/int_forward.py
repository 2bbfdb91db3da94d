"""Forward passes in integers: of quantization-aware training, and the reference of what engines compute."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer

from lowbit.errors import LowbitError
from lowbit.kernels import kernels
from lowbit.kernels.gemm import INTEGER_SCALES
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.float_gradients import in_floats
from lowbit.nn.int_matmul import in_integers
from lowbit.nn.linear_ops import LinearOp
from lowbit.nn.qtensor import QTensor, SavedQTensor, round_operand, with_axes_of
from lowbit.nn.quantizer import KnownScale, Quantizer
from lowbit.numerics import fused, nearest
from lowbit.numerics.exact import add, as_float32, as_type_of, divide, is_float32, multiply
from lowbit.numerics.fake_quant import on_grid, straight_through, usable_bound
from lowbit.numerics.fused import Clipped, on_grid_marked
from lowbit.numerics.grid import Grid
from lowbit.numerics.observed import MovingScale, Observed, fits

_EXACT = "_lowbit_exact_product"
FROZEN = "lowbit_frozen"
# Here the scales are one factor of the whole output, so that those of a convolution hold for all layers:
# a scale per pixel, which Linear and Conv2DTranspose may have, stays inside.
_SCALES = {operand: set(letters) for operand, letters in INTEGER_SCALES["Conv2D"]["forward"].items()}


class Frozen(nn.Layer):
    """The constants of a layer that is being exported, as buffers, which a program can carry."""

    def __init__(
        self,
        *,
        bounds: tuple[float, float],
        integers: Tensor,
        input_scale: Tensor,
        output_scale: Tensor,
        bias: Tensor | None,
    ) -> None:
        super().__init__()
        self.bounds = bounds  # of the input's integers
        for name, value in (
            ("integers", integers),
            ("input_scale", input_scale),
            ("output_scale", output_scale),
            ("bias", bias),
        ):
            self.register_buffer(name, value)


@paddle.jit.not_to_static  # decided in Python, before a program is made of it
def runs_in_integers(layer: nn.Layer) -> bool:
    """Whether this call computes in integers: in evaluation, with scales that the sum does not run over.

    With a gradient to record it does not, since integers have none: the values are the same then, but for
    the rounding of floats, and the gradient goes straight through.
    """
    if layer.training or (paddle.in_dynamic_mode() and paddle.is_grad_enabled()):
        return False
    return forward_is_of_integers(layer)


def forward_is_of_integers(layer: nn.Layer) -> bool:
    """Whether both operands of forward are integers, with scales that come out of its sum."""
    return all(
        isinstance(quantizer, Quantizer)
        and quantizer.is_plain
        and quantizer.gives_integers
        and _SCALES[operand].issuperset(quantizer.spec.granularity.letters)
        for operand, quantizer in (("input", layer.input_quantizer), ("weight", layer.weight_quantizer))
    )


@paddle.jit.not_to_static
def integer_form(layer: nn.Layer, x: Tensor, *geometry: Any) -> Tensor:
    """product(integers of x, integers of w) * (scale of x * scale of w) + bias.

    The integers are held in fp32, whose sums are exact as long as they stay below 2^24: then this is what an
    integer engine computes, to the last bit, in whichever order it adds.
    """
    constants = getattr(layer, FROZEN, None)
    if constants is not None:
        # Rounded inside of the bounds, which are integers: what clipping behind the rounding gives.
        quotient = divide(as_float32(x), constants.input_scale)
        x_integers = nearest(paddle.clip(quotient, *constants.bounds))
        w_integers = constants.integers.cast("float32")
        scale, bias = constants.output_scale, constants.bias
    else:
        weight, bias = layer.effective_weight_and_bias()
        x_integers, x_scale = layer.input_quantizer.integers(x)
        w_integers, w_scale = layer.weight_quantizer.integers(weight)
        scale = multiply(x_scale, per_output(layer, w_scale))
    if getattr(layer, _EXACT, False):
        # fp64 holds every integer up to 2^53: no sum of a layer comes near.
        x_integers, w_integers = x_integers.cast("float64"), w_integers.cast("float64")
    y = multiply(as_float32(layer.product(x_integers, w_integers, None, *geometry)), scale)
    if bias is not None:
        y = add(y, as_float32(bias).reshape(along_outputs(layer)))
    return as_type_of(x, y)


@contextmanager
def integer_reference(model: nn.Layer) -> Iterator[None]:
    """Within it, and in evaluation, the sums of every quantized layer are exact, however large they get.

    What `verify` holds engines and the model itself to: slow, and nothing in it is rounded but what
    stands between two layers.

    with integer_reference(model):
        logits = model(images)
    """
    layers = [layer for layer in model.sublayers(include_self=True) if hasattr(layer, "weight_quantizer")]
    with eval_mode(model):
        for layer in layers:
            object.__setattr__(layer, _EXACT, True)
        try:
            yield
        finally:
            for layer in layers:
                object.__delattr__(layer, _EXACT)


def along_outputs(layer: nn.Layer) -> list[int]:
    """The shape in which a number per output channel is broadcast against the layer's output."""
    channels_last = isinstance(layer, nn.Linear) or layer._data_format.endswith("C")
    return [-1] if channels_last else [-1, 1, 1]


def per_output(layer: nn.Layer, scale: Tensor) -> Tensor:
    """The weight's scale, one number or one per output channel, as the output has its channels."""
    if math.prod(scale.shape) == 1:
        return scale.reshape([1])
    groups = layer._groups if isinstance(layer, nn.Conv2DTranspose) else 1
    # A transposed convolution's weight is [in, out / groups, …]: its groups share their scales.
    return paddle.tile(scale.reshape([-1]), [groups]).reshape(along_outputs(layer))


# QAT with integer forward products and float gradients.
#
# The results equal the float product of the fake-quantized operands up to the rounding of sums, which
# integers do not have. The operands' integers are saved for the backward pass, a quarter or an eighth of
# the memory; the gradients are computed from their values, which equal the fake-quantized ones bit for bit.


@paddle.jit.not_to_static  # decided in Python, before a program is made of it
def may_run_in_integers(layer: nn.Layer, x: Tensor) -> bool:
    """Whether this call's product may be one of integers: in training, on a CPU with kernels."""
    if not layer.training or layer.executor == "simulate":
        return False
    if not paddle.in_dynamic_mode() or kernels() is None:
        return False
    if not (is_float32(x) and is_float32(layer.weight) and x.place.is_cpu_place()):
        return False
    return forward_is_of_integers(layer)


def integer_forward(layer: nn.Layer, x: Tensor, weight: Tensor, *geometry: Any) -> Tensor:
    """The layer's product without its bias; in floats after all for NaN, or shapes no kernel is made for."""
    y = _in_one_node(layer, x, weight, *geometry)
    if y is not None:
        return y
    x, x_scale = layer.input_quantizer.values_and_scale(x)
    weight, w_scale = layer.weight_quantizer.values_and_scale(weight)
    x = layer.before_product(x)
    operands = (
        _operand(x, x_scale, layer.input_quantizer),
        _operand(weight, w_scale, layer.weight_quantizer),
    )
    learning = (not x.stop_gradient, not weight.stop_gradient)
    return _IntegerForward.apply(x, weight, layer.linear_op(x, *geometry), operands, learning)


def _operand(values: Tensor, scale: Tensor, quantizer: Quantizer) -> QTensor:
    """The integers of values that are whole multiples of the scale; with a NaN, which is none, the values."""
    scale = with_axes_of(values, scale.detach())
    made = round_operand(values.detach(), scale, quantizer.grid())
    return made if made.scale is scale else QTensor(data=values.detach())


def _in_one_node(layer: nn.Layer, x: Tensor, weight: Tensor, *geometry: Any) -> Tensor | None:
    """Quantized and multiplied in one node; None where the quantizers need nodes of their own."""
    products = qat_products(layer, x, weight, *geometry)
    return None if products is None else _QuantizedForward.apply(x, products.alpha, weight, products)


def qat_products(layer: nn.Layer, x: Tensor, weight: Tensor, *geometry: Any) -> QATProducts | None:
    """The products of this call of a layer, for which `may_run_in_integers` holds, with quantized operands.

    One scale for the input, kept or averaged, with or without PACT; dynamic scales for the weight. None for
    others, which need nodes of their own. Where it is not None, the batch has been entered: call it once.
    """
    if getattr(layer, "_padding_mode", "zeros") != "zeros":
        return None
    made = weight_operand(layer.weight_quantizer, weight)
    if made is None:
        return None
    products = QATProducts(layer.linear_op(x, *geometry), made, not weight.stop_gradient)
    return products if products.quantize(layer.input_quantizer, x) else None


def chained_products(layer: nn.Layer, linear_op: LinearOp, by: MovingScale) -> QATProducts | None:
    """`qat_products` for an input that is yet to be made, quantized `by` the layer's `moving_scale`."""
    made = weight_operand(layer.weight_quantizer, layer.weight)
    return None if made is None else QATProducts(linear_op, made, not layer.weight.stop_gradient, by.grid)


def _input_operand(quantizer: Quantizer, x: Tensor) -> tuple[QTensor, Clipped | None, Tensor | None] | None:
    """The integers of x, or with a NaN the values; where it was clipped, if anywhere; alpha."""
    moving = quantizer.moving_scale()
    if moving is not None:
        if not fits(x):
            return None
        observed = moving.quantize(x, integers=True)
        data, scale, clipped = observed.data, observed.scale, observed.clipped
        has_nan, grid, alpha = observed.has_nan, moving.grid, moving.alpha
        bound = None if alpha is None else usable_bound(alpha.detach())
    else:
        known = quantizer.known_scale(x)
        if known is None:
            return None
        scale, grid, bound, alpha = known.scale, known.grid, known.bound, None
        data, clipped, broken = on_grid_marked(x, scale, grid, bound=bound, integers=True)
        has_nan = bool(broken)
    if has_nan:
        operand = QTensor(data=on_grid_marked(x, scale, grid, bound=bound)[0])
    else:
        operand = QTensor(data=data, scale=scale, lowest=grid.lowest, highest=grid.highest)
    return operand, None if alpha is None and clipped.is_empty else clipped, alpha


def weight_operand(quantizer: Quantizer, weight: Tensor) -> tuple[QTensor, KnownScale | None] | None:
    """The integers of a weight with dynamic scales, or with a NaN the values; how, if any may be clipped."""
    made = quantizer.dynamic_operand(weight)
    if made is None:
        return None
    (data, scale, broken), grid = made, quantizer.grid()
    if broken:
        return QTensor(data=on_grid(weight.detach(), scale, grid)), KnownScale(scale, grid)
    operand = QTensor(data=data, scale=scale, lowest=grid.lowest, highest=grid.highest)
    # Without a ratio, the largest magnitude is the highest integer of a symmetric grid: nothing is clipped.
    whole = grid.lowest == -grid.highest and quantizer.spec.observer.ratio == 1
    return operand, None if whole else KnownScale(scale, grid)


class QATProducts:
    """Y of quantized X and W, with their gradients straight through; of PACT's alpha, too.

    These are `ChainedProducts` of `lowbit.accel.conv_norm_chain`. X comes by `quantize` or `take`. Between
    forward and backward it holds the integers, and nothing of X but where it was clipped.
    """

    def __init__(
        self,
        linear_op: LinearOp,
        weight: tuple[QTensor, KnownScale | None],
        learns_weight: bool,
        grid: Grid | None = None,
    ) -> None:
        self.alpha: Tensor | None = None
        self._linear_op, self._grid = linear_op, grid  # the grid of X that is taken
        self._clipped: Clipped | None = None
        self._w, self._of_weight = weight
        self._x: QTensor | None = None
        self._learning = True, learns_weight, False  # X, W and alpha
        self._saved: tuple[SavedQTensor, ...] = ()  # X and W
        self._weight: tuple[Tensor, ...] = ()
        self._version: int | None = None  # of the weight

    def quantize(self, quantizer: Quantizer, x: Tensor) -> bool:
        """Let X be x, quantized; False, and nothing done, where the quantizer needs a node of its own."""
        found = _input_operand(quantizer, x)
        if found is None:
            return False
        self._x, self._clipped, self.alpha = found
        learns_alpha = self.alpha is not None and not self.alpha.stop_gradient
        self._learning = not x.stop_gradient, self._learning[1], learns_alpha
        return True

    def take(self, x: Observed) -> None:
        """Let X be these integers, or with a NaN these values; its gradient is that behind the quantizer."""
        assert self._grid is not None
        if x.has_nan:
            self._x = QTensor(data=x.data)
        else:
            bounds = {"lowest": self._grid.lowest, "highest": self._grid.highest}
            self._x = QTensor(data=x.data, scale=x.scale, **bounds)

    def forward(self, x: Tensor | None, weight: Tensor) -> tuple[Tensor, None]:
        """Y in floats; nothing is known of its integers."""
        assert self._x is not None
        operands, linear_op = (self._x, self._w), self._linear_op
        self._weight, self._version = (weight,), fused.version(weight)
        self._saved, self._x = tuple(map(SavedQTensor, operands)), None
        y = in_integers(linear_op, "forward", *operands)
        return linear_op.forward(*(operand.values() for operand in operands)) if y is None else y, None

    def backward(self, dy: Tensor) -> tuple[Tensor | None, ...]:
        """dX, dW and the gradient of alpha, those that are wanted."""
        _check_first_order()
        (weight,), (x, w) = self._weight, self._saved
        fused.check_unchanged(weight, self._version)
        (of_x, of_weight, of_alpha), dx, dweight, dalpha = self._learning, None, None, None
        linear_op = in_floats(self._linear_op, dy)
        if of_x or of_alpha:
            dx = linear_op.grad_input(dy, w.operand().values())
            if self._clipped is not None:
                dx, dalpha = self._clipped.gradients(dx, (of_x, of_alpha), overwrite=True)
        if of_weight:
            dweight = linear_op.grad_weight_of_operand(dy, x.operand())
            if self._of_weight is not None:
                dweight = _through_weight(dweight, weight, self._of_weight)
        return dx, dweight, dalpha


class _QuantizedForward(PyLayer):
    """The products as one autograd node: what `_IntegerForward` is behind the nodes of two quantizers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: Tensor | None, weight: Tensor, products: QATProducts) -> Tensor:
        ctx.products, ctx.has_alpha = products, alpha is not None
        return products.forward(x, weight)[0]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx, dweight, dalpha = ctx.products.backward(dy.contiguous())
        return (dx, dalpha, dweight) if ctx.has_alpha else (dx, dweight)


def _through_weight(dweight: Tensor, weight: Tensor, known: KnownScale) -> Tensor:
    """The gradient of a weight from that of its quantized values."""
    given = (dweight, weight, known.scale, known.grid)
    seen_as = fused.layout(weight, known.scale)
    if seen_as is None:
        return straight_through(*given)
    through, _ = fused.straight_through(*given, seen_as)
    assert through is not None  # wanted
    return through


def _check_first_order() -> None:
    if paddle.is_grad_enabled():
        raise LowbitError(
            "a gradient of a gradient cannot go through a product of integers: "
            'lowbit.nn.convert.set_executor(model, "simulate") multiplies in floats'
        )


class _IntegerForward(PyLayer):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        linear_op: LinearOp,
        operands: tuple[QTensor, QTensor],
        learning: tuple[bool, bool],
    ) -> Tensor:
        ctx.linear_op, ctx.learning = linear_op, learning
        ctx.x, ctx.weight = map(SavedQTensor, operands)
        y = in_integers(linear_op, "forward", *operands)
        return linear_op.forward(x, weight) if y is None else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        _check_first_order()
        dy, dx, dweight = dy.contiguous(), None, None
        linear_op = in_floats(ctx.linear_op, dy)
        if ctx.learning[0]:
            dx = linear_op.grad_input(dy, ctx.weight.operand().values())
        if ctx.learning[1]:
            dweight = linear_op.grad_weight_of_operand(dy, ctx.x.operand())
        return dx, dweight
