"""Convolutions of QAT with the batch norms and activations after them, as long as they follow each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paddle import Tensor, nn

from lowbit.accel.conv_norm_chain import Link, run_chain
from lowbit.accel.fused_norm import NormPass
from lowbit.accel.norm_ops import norm_pass
from lowbit.accel.quantized_norm import QuantizedNormPass
from lowbit.kernels.gemm import Geometry
from lowbit.nn.edge_quantizers import only_edge
from lowbit.nn.int_forward import QATProducts, chained_products, may_run_in_integers, qat_products
from lowbit.nn.linear_ops import Convolution, geometry_of
from lowbit.nn.plain_layers import activation_kind, has_hooks, is_activation, is_norm, is_plain_conv
from lowbit.nn.quant_layers import QuantizedConv2D
from lowbit.nn.quantizer import Quantizer
from lowbit.numerics.observed import MovingScale


@dataclass(eq=False)
class _Planned:
    """A convolution with the batch norm and activation after it, which are to be computed."""

    conv: QuantizedConv2D
    norm: nn.Layer
    geometry: Geometry
    layers: int
    norm_pass: NormPass
    before: MovingScale | None  # of the batch norm's output, if its module has a quantizer
    edge: Quantizer | None  # of the last output, if its module has one

    def quantize_after(self, by: MovingScale) -> None:
        """Let the next convolution's input quantizer follow in the same pass."""
        plain = self.norm_pass
        self.norm_pass = QuantizedNormPass(plain.statistics, plain.activation, self.before, by)

    def learns(self) -> bool:
        """Whether all of its parameters do."""
        own = (self.conv.weight, self.norm.weight, self.norm.bias)
        return all(one is None or not one.stop_gradient for one in own)

    def link(self, products: QATProducts) -> Link:
        """With its products."""
        return Link(products, self.norm_pass, self.conv.weight, self.norm.weight, self.norm.bias)


def qat_chain(
    layers: Sequence[nn.Layer | Callable[[Tensor], Tensor]], x: Tensor
) -> tuple[Tensor, int] | None:
    """What the first of these layers make of x as one node, and how many they are; None where they cannot.

    A chain goes on where a convolution has the only quantizer of its input, with one scale that is averaged.
    A single convolution is one if a quantizer follows its batch norm: without, there is nothing to gain,
    since its output would live longer in backward.
    """
    last = first = _plan(layers, x, x.shape)
    if first is None:
        return None
    rest: list[tuple[_Planned, QATProducts]] = []
    place = first.layers
    while last.edge is None and last.learns():
        found = _following(layers[place:], x, last.geometry.output)
        if found is None or not found[0].learns():
            break
        planned, made, by = found
        last.quantize_after(by)
        rest.append((planned, made))
        last, place = planned, place + planned.layers
    if not rest and type(first.norm_pass) is NormPass:
        return None
    # Last of all, since it enters the batch.
    products = qat_products(first.conv, x, first.conv.weight)
    if products is None:
        return None
    return run_chain(x, [first.link(products), *(planned.link(made) for planned, made in rest)]), place


def _plan(
    layers: Sequence[nn.Layer | Callable[[Tensor], Tensor]], x: Tensor, shape: Sequence[int]
) -> _Planned | None:
    """The convolution that these layers begin with, for `x`, or a tensor like it of this shape."""
    if len(layers) < 2:
        return None
    conv, norm, *rest = layers[:3]
    if not (type(conv) is QuantizedConv2D and conv.plan.is_straight_through and is_plain_conv(conv)):
        return None
    if not (is_norm(norm) and "forward" not in vars(norm) and may_run_in_integers(conv, x)):
        return None
    edge = before = after = None
    if has_hooks(norm):
        edge = only_edge(norm)
        before = None if edge is None else edge.moving_scale()
        if before is None:
            return None
    activation = rest[0] if rest and is_activation(rest[0]) else None
    if activation is not None:
        edge = only_edge(activation) if isinstance(activation, nn.Layer) else None
        after = None if edge is None else edge.moving_scale()
    kind = activation_kind(activation, may_have_edge=after is not None)
    geometry = None if kind is None else geometry_of(conv, shape)
    if geometry is None:
        return None
    made = norm_pass(norm, geometry.output, activation=kind, before=before, after=after)
    if made is None:
        return None
    return _Planned(conv, norm, geometry, 2 if activation is None else 3, made, before, edge)


def _following(
    layers: Sequence[nn.Layer | Callable[[Tensor], Tensor]], x: Tensor, shape: Sequence[int]
) -> tuple[_Planned, QATProducts, MovingScale] | None:
    """The next convolution of a chain and what quantizes its input, if that has no other reader."""
    planned = _plan(layers, x, shape)
    if planned is None or type(planned.conv.input_quantizer) is not Quantizer:
        return None
    by = planned.conv.input_quantizer.moving_scale()
    if by is None:
        return None
    products = chained_products(planned.conv, Convolution(planned.geometry), by)
    return None if products is None else (planned, products, by)
