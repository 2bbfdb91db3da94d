"""What all processes of a training run agree on about a batch that is split between them."""

from __future__ import annotations

import paddle
import paddle.distributed as dist
from paddle import Tensor


def largest_across_ranks(x: Tensor) -> Tensor:
    """The largest of every element over all processes; Inf where one of them is not finite."""
    if not _several():
        return x
    # A comparison with NaN would depend on which process comes first.
    x = paddle.where(paddle.isfinite(x), x, paddle.full_like(x, float("inf")))
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x


def mean_across_ranks(x: Tensor) -> Tensor:
    """The mean of every element over all processes."""
    if not _several():
        return x
    total = x.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def of_first_rank(x: Tensor) -> Tensor:
    """What the first process has, which is what a checkpoint saves."""
    if not _several():
        return x
    copy = x.clone()
    dist.broadcast(copy, src=0)
    return copy


def _several() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1
