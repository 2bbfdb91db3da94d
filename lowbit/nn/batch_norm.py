"""Batch norm in training: frozen after some steps, synchronized over processes, re-estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor, nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F

from lowbit.accel.norm_ops import batch_norm_operator
from lowbit.accel.op_overrides import change_class
from lowbit.errors import LowbitError
from lowbit.nn.bn_folding import BATCH_NORM, Pair, has_paddles_forward
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.scale_state import of_first_rank


def freeze_after(norm: nn.Layer, steps: int, *, name: str = "") -> None:
    """Make the batch norm, in place, freeze its statistics after a number of training forward passes.

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
    change_class(norm, _prepared_class(type(norm)))
    norm.freeze_after = steps
    norm.register_buffer("steps", paddle.zeros([1], "int32"))


def check_can_freeze(norm: nn.Layer, name: str) -> None:
    """Raise a LowbitError if `freeze_after` is not supported."""
    if isinstance(norm, nn.BatchNorm) or not has_paddles_forward(norm):
        raise LowbitError(
            f'batch_norm.freeze_after cannot freeze layer "{name}" ({type(norm).__name__}), which is the old '
            "paddle.nn.BatchNorm or has its own forward: use paddle.nn.BatchNorm1D, 2D or 3D in the "
            "model, or leave freeze_after out"
        )


def follow(norm: nn.Layer, pair: Pair) -> None:
    """Make the batch norm, in place, the identity whenever the pair's layer has it folded in."""
    change_class(norm, _prepared_class(type(norm)))
    norm.fold = pair


class _OfBatchNorm:
    """What Paddle's batch norm has, for the classes that are mixed into it."""

    training: bool
    weight: Tensor | None
    bias: Any
    _mean: Tensor
    _variance: Tensor
    _momentum: float
    _epsilon: float
    _data_format: Any
    _use_global_stats: bool | None
    _check_input_dim: Callable[[Tensor], None]


class _Prepared(_OfBatchNorm):
    """Mixed into a batch norm, whose class is `_plain`."""

    _plain: type[nn.Layer]
    steps: Tensor  # that were trained
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


# Synchronized batch norm, also on CPUs, where Paddle has no kernel.
#
# Training on several processes gives the results of one process with the whole batch, also if the processes
# hold different numbers of images.


def convert_sync_batch_norm(model: nn.Layer) -> nn.Layer:
    """The model with every BatchNorm1D/2D/3D turned into one that shares its statistics between processes.

    Parameters, buffers and their names stay the same, so weights of either kind fit the other. With one
    process, and in evaluation, the layers compute what they did before.

    >>> model = convert_sync_batch_norm(build_model("resnet20", num_classes=10))
    """
    for name, layer in model.named_sublayers(include_self=True):
        if isinstance(layer, nn.BatchNorm):
            raise LowbitError(
                f'layer "{name}" is the old paddle.nn.BatchNorm, which cannot be synchronized: use '
                "paddle.nn.BatchNorm2D in the model, or train without sync-bn"
            )
    if paddle.get_device().startswith("gpu"):
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for name, layer in model.named_sublayers(include_self=True):
        if type(layer) in _SYNCED:
            # In place: hooks, and a layer that the model uses in two places, stay what they were.
            change_class(layer, _SYNCED[type(layer)])
        elif isinstance(layer, nn.layer.norm._BatchNormBase) and not isinstance(layer, _Synced):
            raise LowbitError(
                f'layer "{name}" ({type(layer).__name__}) cannot be synchronized on a CPU: use '
                "paddle.nn.BatchNorm1D, 2D or 3D in the model, or train without sync-bn"
            )
    return model


class _Synced(_OfBatchNorm):
    """Replaces the forward pass of Paddle's batch norm while several processes train."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self._use_global_stats or dist.get_world_size() == 1:
            # Named, since the export of a model rewrites this function and then super() finds no class.
            return nn.layer.norm._BatchNormBase.forward(self, x)
        self._check_input_dim(x)
        layout = "NCHW" if self._data_format[1] == "C" else "NHWC"
        mean, variance, count = _global_statistics(x.detach(), layout)
        with paddle.no_grad():
            for running, batch in ((self._mean, mean), (self._variance, variance)):
                # In fp64, which mixed precision leaves alone.
                moved = (
                    batch.cast("float64") * (1 - self._momentum) + running.cast("float64") * self._momentum
                )
                running.set_value(moved.cast("float32"))
        weight = paddle.ones_like(mean) if self.weight is None else self.weight
        bias = paddle.zeros_like(mean) if self.bias is None else self.bias
        return _Normalize.apply(x, weight, bias, mean, variance, count, self._epsilon, layout)


class SyncBatchNorm1D(_Synced, nn.BatchNorm1D):
    """`paddle.nn.BatchNorm1D` over the batch of all processes."""


class SyncBatchNorm2D(_Synced, nn.BatchNorm2D):
    """`paddle.nn.BatchNorm2D` over the batch of all processes."""


class SyncBatchNorm3D(_Synced, nn.BatchNorm3D):
    """`paddle.nn.BatchNorm3D` over the batch of all processes."""


_SYNCED = {
    nn.BatchNorm1D: SyncBatchNorm1D,
    nn.BatchNorm2D: SyncBatchNorm2D,
    nn.BatchNorm3D: SyncBatchNorm3D,
}


@paddle.no_grad()
def _global_statistics(x: Tensor, layout: str) -> tuple[Tensor, Tensor, float]:
    """Mean and variance per channel over all processes, and how many values each is made of."""
    channels = x.shape[1 if layout == "NCHW" else -1]
    count = x.size // channels
    zeros = paddle.zeros([channels])
    # The kernel's statistics (momentum 0: this batch's own) rather than operators of Python, which mixed
    # precision would round.
    _, mean, variance, *_ = batch_norm_operator(
        x, zeros, paddle.ones([channels]), None, None, False, 0.0, 1e-5, layout, False, False
    )
    mean, variance = mean.cast("float64"), variance.cast("float64")
    # Sums in fp64: the difference of squares below then loses nothing that fp32 could show.
    local = paddle.concat([mean, variance + mean * mean, paddle.ones([1], "float64")]) * float(count)
    dist.all_reduce(local)
    total = float(local[-1])
    mean, square = (local[:-1] / total).chunk(2)
    return mean.cast("float32"), (square - mean * mean).clip(min=0.0).cast("float32"), total


class _Normalize(PyLayer):
    """y = (x - mean) / sqrt(variance + epsilon) · weight + bias, with statistics that depend on every x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        count: float,
        epsilon: float,
        layout: str,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.count, ctx.epsilon, ctx.layout = count, epsilon, layout
        ctx.wanted = [not tensor.stop_gradient for tensor in (x, weight, bias)]
        y, *_ = batch_norm_operator(x, mean, variance, weight, bias, True, 0.0, epsilon, layout, True, False)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, variance = ctx.saved_tensor()
        channel = 1 if ctx.layout == "NCHW" else x.ndim - 1
        others = [axis for axis in range(x.ndim) if axis != channel]
        shape = [-1 if axis == channel else 1 for axis in range(x.ndim)]

        inverse = paddle.rsqrt(variance + ctx.epsilon)
        x_hat = (x - mean.reshape(shape)) * inverse.reshape(shape)
        sum_dy = dy.sum(others)
        sum_dy_x_hat = (dy * x_hat).sum(others)

        total = paddle.concat([sum_dy, sum_dy_x_hat]).cast("float64")
        dist.all_reduce(total)
        mean_dy, mean_dy_x_hat = ((total / ctx.count).cast("float32").reshape([2, *shape])).unbind(0)
        dx = (dy - mean_dy - x_hat * mean_dy_x_hat) * (weight * inverse).reshape(shape)
        # The weights' gradients are this process's share: the training loop adds up the processes.
        gradients = (dx, sum_dy_x_hat, sum_dy)
        return *(g if wanted else None for g, wanted in zip(gradients, ctx.wanted, strict=True)), None, None


# Refreshing batch norm's statistics from batches.


def refresh_batch_norm(model: nn.Layer, batches: Iterable[Tensor]) -> int:
    """Set the statistics of every batch norm to their mean over the batches; returns the number of batches.

    A batch counts by its images, and there is no momentum: what was kept before does not matter. Everything
    but batch norm computes as in evaluation. A batch norm with `use_global_stats` keeps what it has.

    refresh_batch_norm(model, (paddle.to_tensor(batch.images) for batch in islice(loader.epoch(0), 50)))
    """
    sums = {id(norm): _Sums(norm) for norm in _batch_norms(model)}
    count = 0
    with eval_mode(model), ExitStack() as undo:
        for norm_sums in sums.values():
            norm_sums.watch(undo)
        for images in batches:
            model(images)
            count += 1
    if not count:
        raise LowbitError("there are no batches to take batch norm's statistics from")
    for norm_sums in sums.values():
        norm_sums.write()
    return count


@contextmanager
def refreshed_batch_norm(model: nn.Layer, batches: Iterable[Tensor]) -> Iterator[int]:
    """Within it the statistics are those of `refresh_batch_norm`; the original ones are restored afterwards.

    with refreshed_batch_norm(model, batches):
        logits = model(images)
    """
    before = [(part, part.clone()) for norm in _batch_norms(model) for part in (norm._mean, norm._variance)]
    try:
        yield refresh_batch_norm(model, batches)
    finally:
        for part, value in before:
            part.set_value(value)


def _batch_norms(model: nn.Layer) -> list[nn.Layer]:
    kinds = BATCH_NORM | nn.BatchNorm
    found = [layer for layer in model.sublayers(include_self=True) if isinstance(layer, kinds)]
    return [norm for norm in found if not norm._use_global_stats]


class _Sums:
    """Statistics of one batch norm, in fp64: sums of means and variances, each times its images."""

    def __init__(self, norm: nn.Layer) -> None:
        self._norm, self._images = norm, 0
        self._parts = (norm._mean, norm._variance)
        self._totals = [np.zeros(part.shape, np.float64) for part in self._parts]

    def watch(self, undo: ExitStack) -> None:
        """Start normalizing by the batch and adding up its statistics."""
        norm = self._norm
        undo.callback(setattr, norm, "_momentum", norm._momentum)
        norm._momentum = 0.0  # then what training keeps is the batch's own
        if getattr(norm, "freeze_after", None) is not None:  # see lowbit.nn.batch_norm
            undo.callback(setattr, norm, "freeze_after", norm.freeze_after)
            norm.freeze_after = None
        norm.training = True  # eval_mode takes it back
        kept = [part.clone() for part in self._parts]

        def add(_norm: nn.Layer, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
            images = inputs[0].shape[0]
            self._images += images
            for total, part, before in zip(self._totals, self._parts, kept, strict=True):
                total += images * part.numpy().astype(np.float64)
                part.set_value(before)  # a layer with its batch norm folded into it places its grid by them

        undo.callback(norm.register_forward_post_hook(add).remove)

    def write(self) -> None:
        """Store the means; a batch norm that saw no batch keeps its statistics."""
        if self._images:
            for total, part in zip(self._totals, self._parts, strict=True):
                part.set_value(paddle.to_tensor((total / self._images).astype(np.float32)))
