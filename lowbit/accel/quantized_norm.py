"""A batch norm whose result is quantized before its activation, in one pass, for QAT."""

from __future__ import annotations

from collections.abc import Sequence

from paddle import Tensor

from lowbit.accel.fused_norm import NormPass, SavedMultiples, Statistics
from lowbit.kernels.norm import Activation, norm_kernels
from lowbit.kernels.quantization import CObserver
from lowbit.numerics.fused import new_tensor
from lowbit.numerics.observed import MovingScale


class QuantizedNormPass(NormPass):
    """activation(quantized(batch norm of x)), where the activation is none or hard swish.

    The range of the batch norm's result enters a moving average, which gives the scale. Backward needs the
    integers, a byte each, and where values were clipped. The results are those of the batch norm,
    `observed_fake_quantize` and the activation one after the other; the gradient of alpha has another order
    of sums.
    """

    def __init__(self, statistics: Statistics, activation: Activation, quantizer: MovingScale) -> None:
        super().__init__(statistics, activation)
        self.quantizer = quantizer
        self.largest: Tensor | None = None  # max |y| of every channel of every image: forward writes it
        self._integers: Tensor | None = None  # for the slope of the activation
        self._marks: Tensor | None = None
        self._kept: tuple[CObserver, Tensor] | None = None  # the quantizer, and the memory of its scale

    @staticmethod
    def has(activation: Activation) -> bool:
        """Whether the kernels have this activation after a quantizer."""
        return activation in (Activation.NONE, Activation.HARDSWISH)

    def forward(
        self, x: Tensor | SavedMultiples, weight: Tensor | None, bias: Tensor | None, other: Tensor | None
    ) -> Tensor:
        """Y."""
        assert isinstance(x, Tensor) and other is None  # callers have asked
        statistics, shape, scale = self.statistics, x.shape, new_tensor([1])
        y, self._marks = new_tensor(shape), new_tensor(shape, "int8")
        if self.activation:
            self._integers = new_tensor(shape, "int8" if self.quantizer.grid.signed else "uint8")
        observer = self.quantizer.for_kernel(scale)
        norm_kernels().quantized_norm_forward(
            self._norm(shape, x, weight, bias),
            observer,
            y.data_ptr(),
            statistics.mean.data_ptr(),
            statistics.inverse.data_ptr(),
            statistics.running_mean.data_ptr(),
            statistics.running_variance.data_ptr(),
            q=None if self._integers is None else self._integers.data_ptr(),
            clipped=self._marks.data_ptr(),
            largest=None if self.largest is None else self.largest.data_ptr(),
        )
        self._kept = observer, scale
        return y

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
        """The gradients of x, weight, bias, of nothing, and of alpha, those that are wanted."""
        _, *of_channels, _, of_alpha = learning
        assert x is not None and largest is None and self._kept is not None
        statistics, dx = self.statistics, x if overwrite else new_tensor(dy.shape)
        dweight, dbias = (new_tensor(statistics.mean.shape) if learns else None for learns in of_channels)
        dalpha = new_tensor(self.quantizer.alpha.shape) if of_alpha else None
        norm_kernels().quantized_norm_backward(
            self._norm(dy.shape, x, weight, bias),
            self._kept[0],
            statistics.mean.data_ptr(),
            statistics.inverse.data_ptr(),
            dy.data_ptr(),
            dx.data_ptr(),
            *(None if gradient is None else gradient.data_ptr() for gradient in (dweight, dbias, dalpha)),
            q=None if self._integers is None else self._integers.data_ptr(),
            clipped=self._marks.data_ptr(),
        )
        return dx, dweight, dbias, None, dalpha
