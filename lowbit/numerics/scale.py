"""Scales: from a range to a scale, when it is chosen (the scaling), and ranges that run over many batches.

A range is the largest magnitude that a group of values keeps; the scale is the step between two values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from lowbit.errors import LowbitError
from lowbit.numerics import fused_groups
from lowbit.numerics.exact import add, divide, multiply
from lowbit.numerics.grid import Grid
from lowbit.numerics.spec_parser import Kind, join_word, name_and_number

# Below the smallest normal float, numbers lose their digits and some processors take them for 0.
SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def largest_scale(grid: Grid) -> float:
    """The largest scale with which every value of the grid is finite.

    >>> largest_scale(parse_grid("int2")) * 2 == 3.4028234663852886e+38
    True
    """
    steps = max(-grid.lowest, grid.highest)
    scale = np.float32(_LARGEST_FLOAT / steps)
    return float(scale if float(scale) * steps <= _LARGEST_FLOAT else np.nextafter(scale, np.float32(0)))


def scale_from_range(range_: Tensor, grid: Grid) -> Tensor:
    """The scale with which `range_` is the grid's highest value: one fp32 division.

    A range of 0 (every value of the group is 0) gives 1, one that is not finite gives NaN, and the rest
    is kept between the smallest normal float and `largest_scale`.

    >>> scale_from_range(paddle.to_tensor([14.0, 0.0]), parse_grid("int4")).tolist()
    [2.0, 1.0]
    """
    found = fused_groups.scales(range_, grid)
    if found is not None:
        return found
    scale = divide(range_, paddle.full([], grid.highest, "float32"))
    scale = paddle.clip(scale, SMALLEST_SCALE, largest_scale(grid))
    # Not `range_ == 0`: Paddle takes floats that differ by less than 1e-8 for equal.
    scale = paddle.where(range_ > 0, scale, paddle.ones_like(scale))
    return nan_where_not_finite(scale, range_)


def nan_where_not_finite(x: Tensor, of: Tensor) -> Tensor:
    """`x`, but NaN where `of` is not finite."""
    # 0 or NaN. Not a NaN by name, which Paddle cannot read back from an exported program; nor of - of,
    # for which oneDNN overwrites `of` in a served one (Paddle 3.3).
    return add(x, multiply(of, paddle.full([], 0.0, "float32")))


def at_least_smallest(scale: Tensor) -> Tensor:
    """A learned scale or bound as it is used: not below the smallest normal float; NaN stays NaN."""
    return paddle.maximum(scale, paddle.full([], SMALLEST_SCALE, "float32"))


class RangeState(ABC):
    """The range of a tensor over many batches: a plain object that can be saved and continued.

    It takes in ranges, one fp32 number per scale, so that several processes can agree on a batch's ranges
    first. A batch whose ranges are not all finite does not enter.
    """

    def __init__(self) -> None:
        self.entered = 0  # batches
        self.left_out = 0
        self._kept: dict[str, np.ndarray] = {}

    def update(self, range_: Tensor) -> bool:
        """Add the ranges of a batch; returns whether they were used."""
        values = range_.numpy().astype(np.float32)
        if not np.isfinite(values).all():
            self.left_out += 1
            return False
        if self.entered and values.shape != self._range().shape:
            raise ValueError(f"ranges of shape {values.shape} after ranges of shape {self._range().shape}")
        self._enter(values)
        self.entered += 1
        return True

    def range(self) -> Tensor:
        """The ranges to use now, fp32."""
        if not self.entered:
            raise LowbitError(
                "no range is known yet, since no finite batch has been seen: train or calibrate first"
            )
        return paddle.to_tensor(self._range())

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: integers and NumPy arrays."""
        kept = {name: array.copy() for name, array in self._kept.items()}
        return {"entered": self.entered, "left_out": self.left_out, **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where the state was saved."""
        arrays = set(self._array_names()) if state.get("entered") else set()
        expected = {"entered", "left_out", *arrays}
        if set(state) != expected:
            raise LowbitError(
                f"the saved state of a scale has {sorted(state)}, but {type(self).__name__} keeps "
                f"{sorted(expected)}: the checkpoint is of a run with another scaling"
            )
        self.entered, self.left_out = int(state["entered"]), int(state["left_out"])
        self._kept = {name: np.array(state[name]) for name in arrays}

    @staticmethod
    @abstractmethod
    def _array_names() -> tuple[str, ...]: ...

    @abstractmethod
    def _enter(self, values: np.ndarray) -> None: ...

    @abstractmethod
    def _range(self) -> np.ndarray: ...


class MovingAverage(RangeState):
    """The mean over all batches, where older ones weigh less by `rate` each time; PaddleSlim's.

    state = rate * state + 1;  accum = rate * accum + range;  the range is accum / state, all in fp32.

    >>> average = MovingAverage(0.5)
    >>> _ = average.update(paddle.to_tensor([2.0])), average.update(paddle.to_tensor([5.0]))
    >>> average.range().tolist()
    [4.0]
    """

    def __init__(self, rate: float = 0.9) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise LowbitError(f"the rate of a moving average must be at least 0 and below 1, got {rate}")
        self.rate = rate

    @staticmethod
    def _array_names() -> tuple[str, ...]:
        return ("state", "accum")

    def _enter(self, values: np.ndarray) -> None:
        rate, one = np.float32(self.rate), np.ones((), np.float32)
        state, accum = self._kept.get("state", one * 0), self._kept.get("accum", values * 0)
        self._kept = {"state": np.asarray(rate * state + one), "accum": np.asarray(rate * accum + values)}

    def _range(self) -> np.ndarray:
        return np.asarray(self._kept["accum"] / self._kept["state"])


class Window(RangeState):
    """The largest range among the last `size` batches; PaddleSlim's range_abs_max.

    >>> window = Window(2)
    >>> _ = [window.update(paddle.to_tensor([r])) for r in (9.0, 1.0, 2.0)]
    >>> window.range().tolist()
    [2.0]
    """

    def __init__(self, size: int = 10000) -> None:
        super().__init__()
        if not (isinstance(size, int) and size >= 1):
            raise LowbitError(
                f"the size of a window must be a whole number of batches, at least 1, got {size}"
            )
        self.size = size

    @staticmethod
    def _array_names() -> tuple[str, ...]:
        return ("batches", "largest")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved = len(state.get("batches", ()))
        if saved > self.size or (saved < self.size and int(state.get("entered", 0)) > saved):
            raise LowbitError(
                f"the saved state is of a window of {saved} batches, but window_size is now {self.size}: "
                "resume with the window_size that the run was started with"
            )
        super().load_state_dict(state)

    def _enter(self, values: np.ndarray) -> None:
        batches = self._kept.get("batches", np.zeros((0, *values.shape), np.float32))
        largest = self._kept.get("largest", values)
        if len(batches) < self.size:
            self._kept = {
                "batches": np.concatenate([batches, values[None]]),
                "largest": np.maximum(largest, values),
            }
            return
        place = self.entered % self.size
        leaving, batches[place] = batches[place].copy(), values
        # Looking through the whole window is needed only when its largest leaves.
        largest = np.maximum(largest, values) if (leaving < largest).all() else batches.max(axis=0)
        self._kept["largest"] = np.asarray(largest)

    def _range(self) -> np.ndarray:
        return self._kept["largest"]


class Calibrated(RangeState):
    """The plain mean over the calibration's batches, added up in fp64: what `fixed` scaling uses.

    >>> calibrated = Calibrated()
    >>> _ = [calibrated.update(paddle.to_tensor([r])) for r in (1.0, 2.0, 6.0)]
    >>> calibrated.range().tolist()
    [3.0]
    """

    @staticmethod
    def _array_names() -> tuple[str, ...]:
        return ("total",)

    def _enter(self, values: np.ndarray) -> None:
        self._kept["total"] = np.asarray(self._kept.get("total", 0.0) + values.astype(np.float64))

    def _range(self) -> np.ndarray:
        return np.asarray(self._kept["total"] / self.entered).astype(np.float32)


SCALINGS: dict[str, Kind] = {
    "dynamic": Kind(),
    "moving_average": Kind(MovingAverage, 0.9, "the rate, at least 0 and below 1", lambda r: 0 <= r < 1),
    "window": Kind(
        lambda size: Window(int(size)),
        10000,
        "a whole number of batches, at least 1",
        lambda n: n >= 1 and n % 1 == 0,
    ),
    "hindsight": Kind(MovingAverage, 0.1, "the rate, at least 0 and below 1", lambda r: 0 <= r < 1),
    "learned": Kind(),
    "fixed": Kind(lambda _: Calibrated()),
}


@dataclass(frozen=True)
class Scaling:
    """When a scale is chosen: `dynamic` (every call), `moving_average`, `window`, `learned` or `fixed`.

    >>> parse_scaling("moving_average(0.95)").new_state().rate
    0.95
    """

    name: str
    parameter: float | None = None

    def new_state(self) -> RangeState | None:
        """An empty state; None for `dynamic`, which keeps nothing, and `learned`, which is a parameter."""
        make = SCALINGS[self.name].function
        return make(self.parameter) if make else None

    def __str__(self) -> str:
        return join_word(self.name, self.parameter, SCALINGS[self.name].default)


def scaling_names() -> list[str]:
    """The words for scalings, sorted."""
    return sorted(SCALINGS)


def parse_scaling(word: str) -> Scaling:
    """Parse a scaling: dynamic, moving_average, moving_average(0.95), window(10000), ...

    >>> str(parse_scaling("window(100)"))
    'window(100)'
    """
    return Scaling(*name_and_number("scaling", word, SCALINGS))
