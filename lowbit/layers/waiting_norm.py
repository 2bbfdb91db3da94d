"""A batch norm's result that its reader computes, in one pass with a residual sum and a ReLU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paddle import Tensor
from paddle.nn import functional as F

from lowbit.layers.norm_readers import RECTIFIED_SUM
from lowbit.layers.trained_norm import BatchNorm, Statistics, normalized


class WaitingNorm:
    """Stands in for a batch norm's result until somebody reads it.

    `rectified()` and `+` compute it in one pass with what they do; whatever else is asked of it is asked of
    the tensor. Read again, it is the same numbers, and the running statistics are moved on once.

    waiting = WaitingNorm(x, weight, bias, statistics, RECTIFIED_SUM)
    y = F.relu(waiting + shortcut)  # within fast_neighbours()
    """

    def __init__(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: Statistics,
        reader: str | None,
        other: Tensor | None = None,
    ) -> None:
        self._inputs, self._statistics = (x, weight, bias), statistics
        self._reader, self._other = reader, other
        self._tensor: Tensor | None = None  # once it is computed as it is
        self._is_read = False

    def rectified(self) -> Tensor:
        """After a ReLU."""
        return F.relu(self.tensor()) if self._is_read else self._compute(self._other, rectified=True)

    def tensor(self) -> Tensor:
        """As it is."""
        if self._tensor is None and not self._is_read:
            self._tensor = self._compute(self._other)
        elif self._tensor is None:
            y = normalized(*self._inputs, self._statistics.epsilon)
            self._tensor = y if self._other is None else y + self._other
        return self._tensor

    def plus(self, other: Tensor | WaitingNorm) -> Tensor | WaitingNorm:
        """The residual sum, which waits in turn if a ReLU reads it."""
        other = other.tensor() if isinstance(other, WaitingNorm) else other
        if self._other is not None or self._is_read or not _fits(other, self._inputs[0]):
            return self.tensor() + other
        if self._reader != RECTIFIED_SUM:
            return self._compute(other)
        self._is_read = True
        return WaitingNorm(*self._inputs, self._statistics, None, other)

    __add__ = __radd__ = plus

    def _compute(self, other: Tensor | None, *, rectified: bool = False) -> Tensor:
        self._is_read = True
        return BatchNorm.apply(*self._inputs, other, self._statistics, rectified)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor(), name)


def _of_tensor(name: str) -> Callable[..., Any]:
    def asked(self: WaitingNorm, *arguments: Any) -> Any:
        tensors = (a.tensor() if isinstance(a, WaitingNorm) else a for a in arguments)
        return getattr(self.tensor(), name)(*tensors)

    return asked


# Python looks operators up at the class.
for _name in ("sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "gt", "ge", "lt", "le"):
    setattr(WaitingNorm, f"__{_name}__", _of_tensor(f"__{_name}__"))
for _name in ("__neg__", "__getitem__", "__setitem__", "__len__", "__float__"):
    setattr(WaitingNorm, _name, _of_tensor(_name))


def _fits(other: Any, x: Tensor) -> bool:
    return (
        isinstance(other, Tensor)
        and other.shape == x.shape
        and other.dtype == x.dtype
        and other.place.is_cpu_place()
    )
