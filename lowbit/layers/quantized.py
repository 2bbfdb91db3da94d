"""Conv2D, Conv2DTranspose and Linear that carry out the `forward` of a plan."""

from __future__ import annotations

from functools import cache
from typing import Any

from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.errors import LowbitError
from lowbit.layers.integer_form import integer_form, runs_in_integers
from lowbit.layers.quantizer import Quantizer
from lowbit.recipe.plan import Plan
from lowbit.recipe.settings import Pact


class _Quantized:
    """What the three have in common; mixed into Paddle's layer, whose parameters it uses."""

    def forward(self, x: Tensor, *geometry: Any) -> Tensor:
        if runs_in_integers(self):
            return integer_form(self, x, *geometry)
        weight, bias = self.effective_weight_and_bias()
        return self.product(self.input_quantizer(x), self.weight_quantizer(weight), bias, *geometry)

    def effective_weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        """What is multiplied and added; a layer with its batch norm folded into it gives other ones."""
        return self.weight, self.bias


class QuantizedConv2D(_Quantized, nn.Conv2D):
    """`paddle.nn.Conv2D` with its input and weight on grids; made by `quantize_layer`."""

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution itself, with this layer's geometry."""
        padding = self._padding
        if self._padding_mode != "zeros":
            pad = self._reversed_padding_repeated_twice
            x = F.pad(x, pad, mode=self._padding_mode, data_format=self._data_format)
            padding = 0
        return F.conv2d(
            x,
            weight,
            bias,
            stride=self._stride,
            padding=padding,
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


class QuantizedLinear(_Quantized, nn.Linear):
    """`paddle.nn.Linear` with its input and weight on grids; made by `quantize_layer`."""

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The matrix product itself."""
        return F.linear(x, weight, bias)


QUANTIZED: dict[type[nn.Layer], type[nn.Layer]] = {
    nn.Conv2D: QuantizedConv2D,
    nn.Conv2DTranspose: QuantizedConv2DTranspose,
    nn.Linear: QuantizedLinear,
}
_WEIGHT_LAYOUTS = {nn.Conv2D: "NCHW", nn.Conv2DTranspose: "CNHW", nn.Linear: "CN"}


def quantize_layer(layer: nn.Layer, plan: Plan, *, name: str = "", pact: Pact | None = None) -> nn.Layer:
    """The layer itself, from now on with its input and its weight on the grids of the plan.

    In place: parameters keep their names and identities, so fp32 checkpoints load, an optimizer made before
    still trains them, hooks stay, and a layer that the model uses in two places is quantized in both.

    >>> plan = Plan(forward=Forward(weight=TensorSpec(grid="int4", granularity="N")))
    >>> type(quantize_layer(nn.Linear(4, 2), plan)).__name__
    'QuantizedLinear'
    """
    if is_quantized(layer):
        raise LowbitError(f'layer "{name}" is quantized already: start again from the unquantized model')
    check_plan(plan, name)
    base = next((kind for kind in QUANTIZED if isinstance(layer, kind)), None)
    if base is None:
        kinds = ", ".join(kind.__name__ for kind in QUANTIZED)
        raise LowbitError(f'layer "{name}" is a {type(layer).__name__}; those that can be quantized: {kinds}')
    if base is nn.Linear:
        input_layout, channels = "NHWC", layer.weight.shape[0]
    else:
        input_layout, channels = layer._data_format, layer._in_channels
    input_shape = [channels if letter == "C" else 1 for letter in input_layout]
    weight_shape, weight_layout = layer.weight.shape, _WEIGHT_LAYOUTS[base]
    input_, weight = plan.forward.input, plan.forward.weight
    layer.input_quantizer = Quantizer(input_, input_layout, "input", shape=input_shape, name=name, pact=pact)
    layer.weight_quantizer = Quantizer(
        weight, weight_layout, "weight", shape=weight_shape, name=name, pact=pact
    )
    for quantizer in (layer.input_quantizer, layer.weight_quantizer):
        quantizer.training = layer.training
    layer.__class__ = _quantized_class(type(layer), base)
    return layer


def check_plan(plan: Plan, name: str) -> None:
    """A LowbitError when the layers here cannot carry out the plan."""
    if not plan.is_straight_through:
        raise LowbitError(
            f'the plan of layer "{name}" quantizes gradients (low-precision training), which comes with a '
            "later version: leave out grad_input and grad_weight"
        )


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
    # A class of the user's own without a forward of its own: its other methods stay.
    return type(f"Quantized{kind.__name__}", (QUANTIZED[base], kind), {"__module__": kind.__module__})
