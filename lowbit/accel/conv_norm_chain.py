"""Convolutions of QAT, each with its batch norm and all that follows up to the next one, as one node.

Between two of them stand the integers of the next one's input, which the batch norm's pass writes: nothing is
written in fp32 that is not read, and no range is searched that follows from the statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import paddle
from paddle import Tensor
from paddle.autograd import PyLayer

from lowbit.accel.fused_norm import NormPass
from lowbit.accel.quantized_norm import QuantizedNormPass
from lowbit.errors import LowbitError
from lowbit.numerics import fused
from lowbit.numerics.observed import Observed


class ChainedProducts(Protocol):
    """A convolution's products for one call; between forward and backward it holds their operands."""

    alpha: Tensor | None  # PACT's parameter, by which X is clipped

    def take(self, x: Observed) -> None:
        """Let X be these integers."""

    def forward(self, x: Tensor | None, weight: Tensor) -> tuple[Tensor, None]:
        """Y, of the operands that it holds."""

    def backward(self, dy: Tensor) -> tuple[Tensor | None, ...]:
        """dX, dW and alpha's gradient, those that are wanted."""


@dataclass(frozen=True, eq=False)
class Link:
    """A convolution and a batch norm with its activation and quantizers; all but the last have `after`."""

    products: ChainedProducts
    norm: NormPass
    weight: Tensor
    norm_weight: Tensor | None
    norm_bias: Tensor | None

    def parameters(self) -> tuple[Tensor | None, ...]:
        """What may learn, in the order of gradients."""
        return (self.weight, self.products.alpha, self.norm_weight, self.norm_bias, *self.norm.alphas)


def run_chain(x: Tensor, links: Sequence[Link]) -> Tensor:
    """The last link's result; the first link's products hold x quantized."""
    learning = [one for link in links for one in link.parameters() if one is not None]
    return _ConvNormChain.apply(x, _Links(links), *learning)


@dataclass(frozen=True, eq=False)
class _Links:
    """No sequence: Paddle takes the tensors of one for a PyLayer's inputs."""

    links: Sequence[Link]


class _ConvNormChain(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor, chain: _Links, *_parameters: Tensor) -> Tensor:
        links, outputs = chain.links, []
        for link, following in pairwise(links):
            assert isinstance(link.norm, QuantizedNormPass)
            product, _ = link.products.forward(None, link.weight)
            outputs.append(product)
            following.products.take(link.norm.operand(product, link.norm_weight, link.norm_bias))
        last = links[-1]
        product, _ = last.products.forward(None, last.weight)
        y = last.norm.forward(product, last.norm_weight, last.norm_bias, None)
        ctx.links, ctx.outputs, ctx.of_x = links, [*outputs, product], not x.stop_gradient
        of_norms = (one for link in links for one in (link.norm_weight, link.norm_bias))
        fused.save_for_backward(ctx, *(one for one in of_norms if one is not None))
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if paddle.is_grad_enabled():
            raise LowbitError(
                "second-order gradients are not supported for a fused convolution and batch norm: "
                "use the network without lowbit.fuse, or without accelerate()"
            )
        fused.saved_unchanged(ctx)
        given: Tensor | None = dy.contiguous()
        gradients: list[Tensor | None] = []
        for link, product in zip(reversed(ctx.links), reversed(ctx.outputs), strict=True):
            parameters = link.parameters()
            learning = [one is not None and not one.stop_gradient for one in parameters]
            weight, bias = link.norm_weight, link.norm_bias
            # What comes from the next link's products has no other reader.
            in_place = {"overwrite": True} if link is not ctx.links[-1] else {}
            dproduct, *of_norm = link.norm.backward(
                product, weight, bias, given, [True, *learning[2:]], **in_place
            )
            given, dweight, dalpha = link.products.backward(dproduct)
            found = (dweight, dalpha, *of_norm, None)[: len(parameters)]
            gradients[:0] = [
                gradient if learns else None
                for gradient, learns, one in zip(found, learning, parameters, strict=True)
                if one is not None
            ]
        return (given if ctx.of_x else None, *gradients)
