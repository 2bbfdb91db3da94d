"""Fidelity: the outputs of the quantized network compared with those of the same weights in fp32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.nn.inspect import Way, quantization_mode

_BATCHES = 4
_SAMPLES = 128
_FEWEST = 16  # fewer samples show nothing
_KAPPA = 0.2  # "slight agreement" and below, by Landis and Koch
_RELATIVE_ERROR = 1.0  # the answers of other networks: as far away as a constant


@dataclass(frozen=True)
class Fidelity:
    """Agreement of classes (or distance of outputs) on a few batches."""

    samples: int
    agreement: float | None  # fraction of the samples with the same class; None where there are no classes
    chance: float | None  # the same, if the two had nothing to do with each other
    relative_error: float  # RMS difference of the outputs, by what they vary

    @property
    def destroyed(self) -> bool:
        """Whether the quantized network is hardly better than one with random weights."""
        if self.samples < _FEWEST:
            return False
        if self.agreement is None or self.chance is None:
            return self.relative_error >= _RELATIVE_ERROR
        if self.chance > 1 - _KAPPA:  # fp32 itself gives nearly all samples one class
            return False
        return (self.agreement - self.chance) / (1 - self.chance) < _KAPPA

    def warning(self, what_to_do: Sequence[str]) -> list[str]:
        """The lines of the warning."""
        if self.agreement is None or self.chance is None:
            found = (
                f"On {self.samples} calibration samples its outputs are {100 * self.relative_error:.0f} % of "
                "their own variation away from fp32's."
            )
        else:
            found = (
                f"On {self.samples} calibration samples it gives fp32's class to "
                f"{100 * self.agreement:.1f} %; chance alone gives {100 * self.chance:.1f} %."
            )
        return ["THIS QUANTIZATION DESTROYS THE MODEL", found, *what_to_do]


def measure_fidelity(model: nn.Layer, batches: Iterable[Tensor | Sequence[Tensor]]) -> Fidelity:
    """Run a few batches through the model, quantized and in fp32, in evaluation mode.

    measure_fidelity(net, [images]).destroyed
    """
    own: list[list[np.ndarray]] = []
    full: list[list[np.ndarray]] = []
    for batch in islice(batches, _BATCHES):
        inputs = list(batch) if isinstance(batch, list | tuple) else [batch]
        modes: tuple[tuple[Way, list[list[np.ndarray]]], ...] = (("quantized", own), ("full", full))
        for mode, answers in modes:
            with quantization_mode(model, mode), paddle.no_grad():
                found = paddle.utils.flatten(model(*inputs))
                answers.append([one.numpy() for one in found if isinstance(one, Tensor)])
        if sum(len(one[0]) for one in own if one and one[0].ndim) >= _SAMPLES:
            break
    return _compare(own, full)


def _compare(own: list[list[np.ndarray]], full: list[list[np.ndarray]]) -> Fidelity:
    if not own or not own[0]:
        return Fidelity(0, None, None, 0.0)
    error = spread = 0.0
    for one, other in zip(own, full, strict=True):
        for quantized, fp32 in zip(one, other, strict=True):
            reference = fp32.astype(np.float64)
            center = reference.mean(axis=0) if reference.ndim and len(reference) > 1 else reference.mean()
            error += float(np.square(quantized.astype(np.float64) - reference).sum())
            spread += float(np.square(reference - center).sum())
    relative = np.sqrt(error / spread) if spread > 0 else 0.0
    samples = sum(len(one[0]) if one[0].ndim else 1 for one in own)
    if len(own[0]) != 1 or own[0][0].ndim != 2 or own[0][0].shape[1] < 2:
        return Fidelity(samples, None, None, float(relative))
    classes = [np.concatenate([one[0].argmax(axis=1) for one in side]) for side in (own, full)]
    shares = [np.bincount(side, minlength=own[0][0].shape[1]) / samples for side in classes]
    agreement = float((classes[0] == classes[1]).mean())
    return Fidelity(samples, agreement, float(shares[0] @ shares[1]), float(relative))
