"""A quantized layer with the batch norm behind it folded into its weight, while both go on training.

With the gain g = weight / sqrt(running variance + epsilon) of the batch norm, what is quantized is W·g:

- evaluation: x · Q(W·g) + (batch norm's bias + (bias - running mean)·g), and the batch norm lets it through:
  one product, which is what is exported;
- training: x · (Q(W·g) / g) + bias, and the batch norm normalizes that as it always does.

In training this is Krishnamoorthi's correction (the running gain is taken out again, the batch's own put in,
so that the grid does not jump from batch to batch), carried out on the weight instead of the output, and
with the statistics of the quantized product, which are those that evaluation needs: one convolution, not two.
When the statistics stand still, both are the same but for the rounding of floats.

g only places the grid, as an observed range does, and gets no gradient there: those of the batch norm's
weight, of its bias and of the statistics are the batch norm's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import paddle
from paddle import Tensor, nn

from lowbit.layers.across_ranks import of_first_rank
from lowbit.numerics.exact import divide, multiply


@dataclass(frozen=True, eq=False)
class Pair:
    """A layer and its batch norm, known to both (and a sublayer of neither: names stay)."""

    layer: nn.Layer
    norm: nn.Layer

    @property
    def is_one(self) -> bool:
        """Whether the layer does the batch norm's work: not if either of them trains, or looks at batches."""
        return not (self.layer.training or self.norm.training)


def fold_in_training(layer: nn.Layer, pair: Pair) -> None:
    """Let the quantized layer, in place, quantize its weight with the pair's batch norm folded into it."""
    layer.fold = pair
    layer.__class__ = _folded_class(type(layer))


def folded_weight_and_bias(layer: nn.Layer, norm: nn.Layer) -> tuple[Tensor, Tensor]:
    """The weight and the bias with which the layer does the work of the batch norm in evaluation, too.

    >>> norm = nn.BatchNorm1D(2)
    >>> norm.weight.set_value(paddle.to_tensor([2.0, 4.0]))
    >>> folded_weight_and_bias(nn.Linear(3, 2), norm)[0].shape
    [3, 2]
    """
    gain = _gain(norm, norm._variance)
    shift = norm._mean.cast("float64") * -1.0
    if layer.bias is not None:
        shift = shift + layer.bias.cast("float64")
    shift = shift * gain
    if norm.bias is not None:
        shift = shift + norm.bias.cast("float64")
    gain = along_weight(layer, gain.cast("float32"))
    return multiply(layer.weight, gain), shift.cast("float32")


def along_weight(layer: nn.Layer, per_output: Tensor) -> Tensor:
    """A number per output channel in the shape in which it is broadcast against the layer's weight."""
    if isinstance(layer, nn.Linear):
        return per_output.reshape([1, -1])
    if isinstance(layer, nn.Conv2D):
        return per_output.reshape([-1, 1, 1, 1])
    # [in, out / groups, …], where the inputs of a group have its outputs only
    inputs, groups = layer._in_channels, layer._groups
    rows = paddle.repeat_interleave(per_output.reshape([groups, -1]), inputs // groups, axis=0)
    return rows.unsqueeze([2, 3])


class _Folded:
    """Mixed into a quantized layer, whose class is `_plain`."""

    _plain: type[nn.Layer]
    fold: Pair

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        geometry = () if output_size is None else (output_size,)
        if self.fold.is_one:
            # Named, since the export of a model rewrites this function and then super() finds no class.
            return self._plain.forward(self, x, *geometry)
        x, weight = self.input_quantizer(x), self._weight_before_batch_norm()
        return self.product(x, weight, self.bias, *geometry)

    def effective_weight_and_bias(self) -> tuple[Tensor, Tensor]:
        """What is multiplied and added in evaluation."""
        return folded_weight_and_bias(self, self.fold.norm)

    def _weight_before_batch_norm(self) -> Tensor:
        variance = self.fold.norm._variance.detach()
        if self.training:
            # Statistics that each process keeps for itself would give each a grid of its own.
            variance = of_first_rank(variance)
        gain = along_weight(self, _gain(self.fold.norm, variance).cast("float32")).detach()
        quantized = self.weight_quantizer(multiply(self.weight, gain))
        # Nothing can be taken out of a gain of 0; the batch norm hides the channel, and its weight still
        # learns from what it hides. (Not `gain == 0`: Paddle takes numbers below 1e-8 for 0.)
        hidden = ~(paddle.abs(gain) > 0) & ~paddle.isnan(gain)
        shown = divide(quantized, paddle.where(hidden, paddle.ones_like(gain), gain))
        return paddle.where(hidden, self.weight, shown)


def _gain(norm: nn.Layer, variance: Tensor) -> Tensor:
    # In fp64, which mixed precision leaves alone; rounded once, so that every executor has the same bits.
    deviation = paddle.sqrt(variance.cast("float64") + norm._epsilon)
    weight = paddle.ones_like(deviation) if norm.weight is None else norm.weight.cast("float64")
    return weight / deviation


@cache
def _folded_class(kind: type[nn.Layer]) -> type[nn.Layer]:
    return type(f"Folded{kind.__name__}", (_Folded, kind), {"_plain": kind, "__module__": kind.__module__})
