"""Conv2D, Conv2DTranspose and Linear that carry out a plan."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.accel.op_overrides import change_class
from lowbit.errors import LowbitError
from lowbit.nn.int_forward import (
    along_outputs,
    integer_form,
    integer_forward,
    may_run_in_integers,
    runs_in_integers,
)
from lowbit.nn.int_matmul import Executor
from lowbit.nn.linear_ops import (
    ByAutograd,
    ChannelsLast,
    Convolution,
    LinearOp,
    Matrix,
    Transposed,
    geometry_of,
    transposed_geometry,
)
from lowbit.nn.qt_autograd import BackwardQuantizers, Operands, qt_linear
from lowbit.nn.quantizer import Quantizer
from lowbit.nn.training_quantizer import TrainingQuantizer
from lowbit.numerics.exact import as_float32
from lowbit.recipe.plan import Plan
from lowbit.recipe.recipe import Lsq, Pact


class _Quantized:
    """Y = q(X) · q(W) + bias: what the three have in common; mixed into Paddle's layer.

    In training, the gradient passes straight through `q` (QAT), or all three products have quantized
    operands (low precision, `qt_autograd`). In evaluation, a layer computes the same Y in integers where the
    kernels can, else in fp32 on the grids. `geometry` is what a call may add, such as an output's size.
    """

    plan: Plan
    input_quantizer: Quantizer  # q of X; may also clip (PACT) or learn its step (LSQ)
    weight_quantizer: Quantizer  # q of W
    backward_quantizers: BackwardQuantizers  # in low precision: those of dX and dW
    weight: Tensor
    bias: Any  # None without one
    training: bool
    executor: Executor = "auto"  # of the forward product in quantization-aware training

    def forward(self, x: Tensor, *geometry: Any) -> Tensor:
        if runs_in_integers(self):
            return integer_form(self, x, *geometry)
        weight, bias = self.effective_weight_and_bias()
        if self.training and not self.plan.is_straight_through:
            return self._in_low_precision(x, weight, bias, *geometry)
        if may_run_in_integers(self, x):
            y = integer_forward(self, x, weight, *geometry)
            return y if bias is None else y + bias.reshape(along_outputs(self))
        return self.product(self.input_quantizer(x), self.weight_quantizer(weight), bias, *geometry)

    def effective_weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        """What is multiplied and added; a layer with its batch norm folded into it gives other ones."""
        return self.weight, self.bias

    def linear_op(self, x: Tensor, *geometry: Any) -> LinearOp:
        """The three products of this layer for an input like `x`."""
        product = partial(self._product_without_bias, geometry)
        return ByAutograd(product, tuple(x.shape), tuple(self.weight.shape))

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
        """The layer's own product, in floats."""
        raise NotImplementedError

    def before_product(self, x: Tensor) -> Tensor:
        """What is done to the input before it is multiplied."""
        return x

    def _product_without_bias(self, geometry: tuple[Any, ...], x: Tensor, weight: Tensor) -> Tensor:
        return self.product(x, weight, None, *geometry)

    def _in_low_precision(self, x: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
        x = self.before_product(as_float32(self.input_quantizer.trained(x)))
        weight = self.weight_quantizer.trained(weight)
        y = qt_linear(x, weight, self.linear_op(x, *geometry), Operands(self))
        return y if bias is None else y + bias.reshape(along_outputs(self))


class QuantizedConv2D(_Quantized, nn.Conv2D):
    """`paddle.nn.Conv2D` with its input and weight on grids; made by `quantize_layer`."""

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution itself, with this layer's geometry."""
        return self._convolution(self.before_product(x), weight, bias)

    def before_product(self, x: Tensor) -> Tensor:
        """The input with padding that is not of zeros."""
        if self._padding_mode == "zeros":
            return x
        pad = self._reversed_padding_repeated_twice
        return F.pad(x, pad, mode=self._padding_mode, data_format=self._data_format)

    def linear_op(self, x: Tensor) -> LinearOp:
        """The three products, of kernels that are made for it; of Paddle where shapes do not fit together."""
        geometry = geometry_of(self, _images_first(self, x))
        if geometry is not None:
            return _as_it_lies(self, Convolution(geometry))
        product = partial(self._convolution, bias=None)
        return ByAutograd(product, tuple(x.shape), tuple(self.weight.shape))

    def _convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(
            x,
            weight,
            bias,
            stride=self._stride,
            padding=self._padding if self._padding_mode == "zeros" else 0,
            dilation=self._dilation,
            groups=self._groups,
            data_format=self._data_format,
        )


class QuantizedConv2DTranspose(_Quantized, nn.Conv2DTranspose):
    """`paddle.nn.Conv2DTranspose` with its input and weight on grids; made by `quantize_layer`."""

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        return super().forward(x, output_size)

    def product(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None
    ) -> Tensor:
        """The transposed convolution itself, with this layer's geometry."""
        return F.conv2d_transpose(
            x,
            weight,
            bias,
            stride=self._stride,
            padding=self._padding,
            output_padding=self.output_padding if output_size is None else 0,
            dilation=self._dilation,
            groups=self._groups,
            output_size=output_size,
            data_format=self._data_format,
        )

    def linear_op(self, x: Tensor, output_size: list[int] | None = None) -> LinearOp:
        """The three products, as those of a convolution with forward and backward swapped."""
        geometry = transposed_geometry(self, _images_first(self, x), output_size)
        if geometry is not None:
            return _as_it_lies(self, Transposed(Convolution(geometry)))
        return super().linear_op(x, output_size)


class QuantizedLinear(_Quantized, nn.Linear):
    """`paddle.nn.Linear` with its input and weight on grids; made by `quantize_layer`."""

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The matrix product itself."""
        return F.linear(x, weight, bias)

    def linear_op(self, x: Tensor) -> LinearOp:
        """The three products as those of matrices."""
        return Matrix()


QUANTIZED: dict[type[nn.Layer], type[nn.Layer]] = {
    nn.Conv2D: QuantizedConv2D,
    nn.Conv2DTranspose: QuantizedConv2DTranspose,
    nn.Linear: QuantizedLinear,
}
_WEIGHT_LAYOUTS = {nn.Conv2D: "NCHW", nn.Conv2DTranspose: "CNHW", nn.Linear: "CN"}


def quantize_layer(
    layer: nn.Layer,
    plan: Plan,
    *,
    name: str = "",
    number: int = 0,
    pact: Pact | None = None,
    lsq: Lsq | None = None,
) -> nn.Layer:
    """The layer itself, from now on with its operands on the grids of the plan.

    In place: parameters keep their names and identities, so fp32 checkpoints load, an optimizer made before
    still trains them, hooks stay, and a layer that the model uses in two places is quantized in both.
    `number` tells the layers of a model apart when they round stochastically.

    >>> plan = Plan(forward=Forward(weight=TensorSpec(grid="int4", granularity="N")))
    >>> type(quantize_layer(nn.Linear(4, 2), plan)).__name__
    'QuantizedLinear'
    """
    if is_quantized(layer):
        raise LowbitError(f'layer "{name}" is quantized already: start again from the unquantized model')
    base = next((kind for kind in QUANTIZED if isinstance(layer, kind)), None)
    if base is None:
        kinds = ", ".join(kind.__name__ for kind in QUANTIZED)
        raise LowbitError(f'layer "{name}" is a {type(layer).__name__}; those that can be quantized: {kinds}')
    _set_plan(layer, base, plan, name=name, number=number, pact=pact, lsq=lsq)
    change_class(layer, _quantized_class(type(layer), base))
    return layer


def replan_layer(
    layer: nn.Layer,
    plan: Plan,
    *,
    name: str = "",
    number: int = 0,
    pact: Pact | None = None,
    lsq: Lsq | None = None,
) -> None:
    """Give a quantized layer another plan; its quantizers are new ones, which have learned nothing yet."""
    layer._sub_layers.pop("backward_quantizers", None)
    base = next(kind for kind, quantized in QUANTIZED.items() if isinstance(layer, quantized))
    _set_plan(layer, base, plan, name=name, number=number, pact=pact, lsq=lsq)


def _set_plan(
    layer: nn.Layer,
    base: type[nn.Layer],
    plan: Plan,
    *,
    name: str,
    number: int,
    pact: Pact | None,
    lsq: Lsq | None,
) -> None:
    layouts = _layouts(layer, base)
    kind = Quantizer if plan.is_straight_through else TrainingQuantizer
    for role in ("input", "weight"):
        layout, shape = layouts[role]
        spec = getattr(plan.forward, role)
        quantizer = kind(spec, layout, role, shape=shape, name=name, pact=pact, lsq=lsq)
        setattr(layer, f"{role}_quantizer", quantizer)
    layer.plan = plan
    if not plan.is_straight_through:
        layer.backward_quantizers = BackwardQuantizers(plan, layouts, number=number, name=name)
    for quantizer in (layer.input_quantizer, layer.weight_quantizer):
        quantizer.training = layer.training


def _images_first(layer: nn.Layer, x: Tensor) -> list[int]:
    """The shape of x in NCHW."""
    if layer._data_format == "NCHW" or x.ndim != 4:
        return x.shape
    samples, height, width, channels = x.shape
    return [samples, channels, height, width]


def _as_it_lies(layer: nn.Layer, linear_op: LinearOp) -> LinearOp:
    """Products in NCHW for the layer's own layout."""
    return linear_op if layer._data_format == "NCHW" else ChannelsLast(linear_op)


def _layouts(layer: nn.Layer, base: type[nn.Layer]) -> dict[str, tuple[str, list[int]]]:
    """How operands lie: layouts and shapes; of those that are no weight only the channels' size counts."""
    if base is nn.Linear:
        layout, (inputs, outputs) = "NHWC", layer.weight.shape
    else:
        layout, inputs, outputs = layer._data_format, layer._in_channels, layer._out_channels

    def shape(channels: int) -> list[int]:
        return [channels if letter == "C" else 1 for letter in layout]

    return {
        "input": (layout, shape(inputs)),
        "weight": (_WEIGHT_LAYOUTS[base], layer.weight.shape),
        "grad_output": (layout, shape(outputs)),
    }


def is_quantized(layer: nn.Layer) -> bool:
    """Whether `quantize_layer` has made it."""
    return isinstance(layer, tuple(QUANTIZED.values()))


def has_quantized_layers(model: nn.Layer) -> bool:
    """Whether any layer of the model, or the model itself, is quantized."""
    return any(is_quantized(layer) for layer in model.sublayers(include_self=True))


@cache
def _quantized_class(kind: type[nn.Layer], base: type[nn.Layer]) -> type[nn.Layer]:
    if kind is base:
        return QUANTIZED[base]
    # A class of the user's own without its own forward: its other methods stay.
    return type(f"Quantized{kind.__name__}", (QUANTIZED[base], kind), {"__module__": kind.__module__})
