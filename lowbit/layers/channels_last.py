"""Products of tensors whose channels come last (NHWC), by kernels for those whose channels come first."""

from __future__ import annotations

from dataclasses import dataclass

from paddle import Tensor

from lowbit.layers.contraction import Contraction


@dataclass(frozen=True)
class ChannelsLast(Contraction):
    """A contraction in NCHW between two changes of layout; weights lie the same way in both.

    >>> channels_first(paddle.zeros([2, 5, 6, 3])).shape
    [2, 3, 5, 6]
    """

    inner: Contraction

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return channels_last(self.inner.forward(channels_first(x), weight))

    def grad_input(self, dy: Tensor, weight: Tensor) -> Tensor:
        return channels_last(self.inner.grad_input(channels_first(dy), weight))

    def grad_weight(self, dy: Tensor, x: Tensor) -> Tensor:
        return self.inner.grad_weight(channels_first(dy), channels_first(x))

    def forward_scale(self, x: Tensor, weight: Tensor) -> Tensor | None:
        found = self.inner.forward_scale(channels_first(x), weight)
        return None if found is None else channels_last(found)

    def grad_input_scale(self, dy: Tensor, weight: Tensor) -> Tensor | None:
        found = self.inner.grad_input_scale(channels_first(dy), weight)
        return None if found is None else channels_last(found)

    def grad_weight_scale(self, dy: Tensor, x: Tensor) -> Tensor | None:
        return self.inner.grad_weight_scale(channels_first(dy), channels_first(x))


def channels_first(x: Tensor) -> Tensor:
    """NHWC as NCHW, in memory of its own: kernels take addresses."""
    return x.transpose([0, 3, 1, 2]).contiguous()


def channels_last(x: Tensor) -> Tensor:
    """NCHW as NHWC, likewise."""
    return x.transpose([0, 2, 3, 1]).contiguous()
