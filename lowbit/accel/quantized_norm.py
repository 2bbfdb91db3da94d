"""A batch norm whose result is quantized before its activation, after it, or both, in one pass, for QAT."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from paddle import Tensor

from lowbit.accel.fused_norm import NormPass, SavedMultiples, Statistics
from lowbit.kernels.norm import Activation, NormQuantizers, norm_kernels
from lowbit.numerics.fused import new_tensor
from lowbit.numerics.observed import MovingScale, Observed

_BEFORE = (Activation.NONE, Activation.HARDSWISH)


class QuantizedNormPass(NormPass):
    """after(activation(before(batch norm of x))), where `before` and `after` are quantizers, or None.

    The range of what comes to a quantizer enters its moving average, which gives the scale. Backward needs
    where values were clipped, and with `before` and an activation the integers, a byte per element each. The
    results are those of the batch norm, `observed_fake_quantize` and the activation one after the other; the
    gradients of alphas have another order of sums.
    """

    def __init__(
        self,
        statistics: Statistics,
        activation: Activation,
        before: MovingScale | None,
        after: MovingScale | None = None,
    ) -> None:
        super().__init__(statistics, activation)
        self._before, self._after = before, after
        self._by: NormQuantizers | None = None
        self._kept: tuple[Tensor | None, ...] = ()  # the memory that `_by` names

    @staticmethod
    def has(activation: Activation, *, before: bool) -> bool:
        """Whether the kernels have this activation, behind a quantizer if there is one `before`."""
        return not before or activation in _BEFORE

    @property
    def alphas(self) -> tuple[Tensor | None, Tensor | None]:
        """PACT's parameters of both quantizers."""
        before, after = self._before, self._after
        return (None if before is None else before.alpha, None if after is None else after.alpha)

    def forward(
        self, x: Tensor | SavedMultiples, weight: Tensor | None, bias: Tensor | None, other: Tensor | None
    ) -> Tensor:
        """Y."""
        assert isinstance(x, Tensor) and other is None  # callers have asked
        y = new_tensor(x.shape)
        self._run(x, weight, bias, y, None)
        return y

    def operand(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Observed:
        """What `after` makes of this batch as integers; with a NaN, which is none, as values."""
        assert self._after is not None
        data = new_tensor(x.shape, "int8" if self._after.grid.signed else "uint8")
        has_nan = self._run(x, weight, bias, None, data)
        if has_nan:
            statistics, data = self.statistics, new_tensor(x.shape)
            addresses = (one.data_ptr() for one in (statistics.mean, statistics.inverse, data))
            norm_kernels().quantized_norm_values(self._norm(x.shape, x, weight, bias), self._by, *addresses)
        return Observed(data, self._scale_after, None, has_nan)

    def _run(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        y: Tensor | None,
        integers: Tensor | None,
    ) -> bool:
        statistics, shape, before, after = self.statistics, x.shape, self._before, self._after
        wanted = before is not None and bool(self.activation), before is not None, after is not None
        count = math.prod(shape)
        kept = new_tensor([sum(wanted) * count], "int8")  # one allocation, since each takes microseconds
        places = accumulate((count * one for one in wanted), initial=kept.data_ptr())
        q, clipped, after_clipped = (at if one else None for at, one in zip(places, wanted, strict=False))
        scale = None if before is None else new_tensor([1])
        if after is not None:
            self._scale_after = new_tensor([1] * len(shape))
        self._by = NormQuantizers(
            None if before is None else before.for_kernel(scale),
            None if after is None else after.for_kernel(self._scale_after),
            q=q,
            clipped=clipped,
            integers=None if integers is None else integers.data_ptr(),
            after_clipped=after_clipped,
        )
        self._kept = scale, kept
        nan_count = norm_kernels().quantized_norm_forward(
            self._norm(shape, x, weight, bias),
            self._by,
            statistics.mean.data_ptr(),
            statistics.inverse.data_ptr(),
            statistics.running_mean.data_ptr(),
            statistics.running_variance.data_ptr(),
            None if y is None else y.data_ptr(),
        )
        return bool(nan_count)

    def backward(
        self,
        x: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        dy: Tensor,
        learning: Sequence[bool],
        *,
        overwrite: bool = False,
        largest: Tensor | None = None,
    ) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight, bias, and of both alphas, those that are wanted.

        `overwrite`: dX takes the memory of dY.
        """
        _, *of_channels, of_before, of_after = learning
        assert x is not None and largest is None and self._by is not None
        statistics, dx = self.statistics, dy if overwrite else new_tensor(dy.shape)
        dweight, dbias = (new_tensor(statistics.mean.shape) if learns else None for learns in of_channels)
        dbefore, dafter = (
            None if alpha is None or not learns else new_tensor(alpha.shape)
            for alpha, learns in zip(self.alphas, (of_before, of_after), strict=True)
        )
        norm_kernels().quantized_norm_backward(
            self._norm(dy.shape, x, weight, bias),
            self._by,
            statistics.mean.data_ptr(),
            statistics.inverse.data_ptr(),
            dy.data_ptr(),
            dx.data_ptr(),
            *(None if one is None else one.data_ptr() for one in (dweight, dbias, dbefore, dafter)),
        )
        return dx, dweight, dbias, dbefore, dafter
