"""Batch norm over the batch of all processes, on CPUs too, where Paddle's own has no kernel.

Training on several processes then gives what one process gives with the whole batch, also when the
processes hold different numbers of images.
"""

from __future__ import annotations

from typing import Any

import paddle
import paddle.distributed as dist
from paddle import Tensor, _C_ops, nn
from paddle.autograd import PyLayer

from lowbit.errors import LowbitError


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
            layer.__class__ = _SYNCED[type(layer)]
        elif isinstance(layer, nn.layer.norm._BatchNormBase) and not isinstance(layer, _Synced):
            raise LowbitError(
                f'layer "{name}" ({type(layer).__name__}) cannot be synchronized on a CPU: use '
                "paddle.nn.BatchNorm1D, 2D or 3D in the model, or train without sync-bn"
            )
    return model


class _Synced:
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
    _, mean, variance, *_ = _C_ops.batch_norm(
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
        y, *_ = _C_ops.batch_norm(x, mean, variance, weight, bias, True, 0.0, epsilon, layout, True, False)
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
