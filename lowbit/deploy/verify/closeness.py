"""Agreement of models that are not classifiers: how far each output of an engine is from the model's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit.errors import LowbitError

Answers = Callable[[Sequence[np.ndarray[Any, Any]]], list[np.ndarray[Any, Any]]]
# Float rounding moves single integers of a quantized layer by a step; a mistake moves answers by more.
_CLOSE = 0.1  # mean difference of a sample, in mean deviations of the output


@dataclass(frozen=True)
class Closeness:
    """How one of them did against the model, over all outputs."""

    samples: int
    agreement: float  # the fraction of samples whose outputs are all close to the model's
    max_difference: float
    mean_difference: float


def measure_closeness(
    model: Answers, others: Mapping[str, Answers], batches: Iterable[Sequence[np.ndarray[Any, Any]]]
) -> dict[str, Closeness]:
    """Each of the others against the model, on the same inputs.

    An output of a sample is close if its mean difference is at most a tenth of the output's mean distance
    from its mean.
    """
    sums = {name: _Sums() for name in others}
    for inputs in batches:
        expected = model(inputs)
        for name, answer in others.items():
            sums[name].add(expected, answer(inputs))
    return {name: one.result() for name, one in sums.items()}


class _Sums:
    def __init__(self) -> None:
        self._samples, self._close, self._values = 0, 0, 0
        self._largest, self._total = 0.0, 0.0

    def add(self, expected: list[np.ndarray[Any, Any]], found: list[np.ndarray[Any, Any]]) -> None:
        if [one.shape for one in expected] != [one.shape for one in found]:
            raise LowbitError(
                f"the model answers {[list(one.shape) for one in expected]}, the engine "
                f"{[list(one.shape) for one in found]}: the files are of another model; export it again"
            )
        count = len(expected[0]) if expected[0].ndim else 1
        close = np.ones(count, bool)
        for own, other in zip(expected, found, strict=True):
            own = own.astype(np.float64)
            difference = np.abs(other.astype(np.float64) - own)
            difference = np.where(np.isnan(difference), np.inf, difference)
            self._largest = max(self._largest, float(difference.max(initial=0)))
            self._total += float(difference.sum())
            self._values += difference.size
            spread = max(float(np.abs(own - own.mean()).mean()), 1e-3 * float(np.abs(own).max(initial=0)))
            if own.ndim and len(own) == count:
                close &= difference.reshape(count, -1).mean(axis=1) <= _CLOSE * spread
            else:  # one answer for the whole batch
                close &= bool(difference.mean() <= _CLOSE * spread)
        self._samples += count
        self._close += int(close.sum())

    def result(self) -> Closeness:
        return Closeness(
            samples=self._samples,
            agreement=self._close / self._samples,
            max_difference=self._largest,
            mean_difference=self._total / max(self._values, 1),
        )
