"""Batch norm in quantization-aware training: it stands still after some steps, or vanishes when serving."""

from __future__ import annotations

from functools import cache

import paddle
from paddle import Tensor, nn
from paddle.nn import functional as F

from lowbit.errors import LowbitError
from lowbit.layers.across_ranks import of_first_rank
from lowbit.layers.foldable import has_paddles_forward
from lowbit.layers.folded import Pair


def freeze_after(norm: nn.Layer, steps: int, *, name: str = "") -> None:
    """Let the batch norm, in place, keep and use its statistics after so many forward passes in training.

    From then on training normalizes as evaluation does; weight and bias go on learning. The count is the
    buffer `steps`, which checkpoints save.

    >>> norm = nn.BatchNorm1D(2)
    >>> freeze_after(norm, 1)
    >>> _, statistics = norm(paddle.randn([4, 2])), norm._mean.tolist()
    >>> _ = norm(paddle.randn([4, 2]))
    >>> norm._mean.tolist() == statistics
    True
    """
    check_can_freeze(norm, name)
    norm.__class__ = _prepared_class(type(norm))
    norm.freeze_after = steps
    norm.register_buffer("steps", paddle.zeros([1], "int32"))


def check_can_freeze(norm: nn.Layer, name: str) -> None:
    """A LowbitError where `freeze_after` cannot do its work."""
    if isinstance(norm, nn.BatchNorm) or not has_paddles_forward(norm):
        raise LowbitError(
            f'batch_norm.freeze_after cannot freeze layer "{name}" ({type(norm).__name__}), which is the old '
            "paddle.nn.BatchNorm or has a forward of its own: use paddle.nn.BatchNorm1D, 2D or 3D in the "
            "model, or leave freeze_after out"
        )


def follow(norm: nn.Layer, pair: Pair) -> None:
    """Let the batch norm, in place, pass on what it gets whenever the pair's layer does its work."""
    norm.__class__ = _prepared_class(type(norm))
    norm.fold = pair


class _Prepared:
    """Mixed into a batch norm, whose class is `_plain`."""

    _plain: type[nn.Layer]
    freeze_after: int | None = None
    fold: Pair | None = None

    @paddle.jit.not_to_static  # decided in Python, before a program is made of it
    def forward(self, x: Tensor) -> Tensor:
        if self.fold is not None and self.fold.is_one:
            return x
        if not self.training or self.freeze_after is None:
            return self._plain.forward(self, x)
        done = int(self.steps.item())
        if done >= self.freeze_after:
            return F.batch_norm(
                x,
                self._mean,
                self._variance,
                weight=self.weight,
                bias=self.bias,
                training=True,
                momentum=self._momentum,
                epsilon=self._epsilon,
                data_format=self._data_format,
                use_global_stats=True,
            )
        y = self._plain.forward(self, x)
        self.steps.set_value(paddle.full([1], done + 1, "int32"))
        if done + 1 == self.freeze_after:
            # From here on they are used, and no longer the same on every process by themselves.
            for statistic in (self._mean, self._variance):
                statistic.set_value(of_first_rank(statistic))
        return y


@cache
def _prepared_class(kind: type[nn.Layer]) -> type[nn.Layer]:
    if issubclass(kind, _Prepared):
        return kind
    return type(
        f"Prepared{kind.__name__}", (_Prepared, kind), {"_plain": kind, "__module__": kind.__module__}
    )
