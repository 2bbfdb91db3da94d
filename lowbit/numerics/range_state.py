"""What is known of a tensor's range after many batches: plain objects that can be saved and continued.

They take in ranges, one fp32 number per scale, so that several processes can agree on a batch's ranges
first. `scale_from_range(state.range(), grid)` gives the scale.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from paddle import Tensor

from lowbit.errors import LowbitError


class RangeState(ABC):
    """What the states have in common: a batch whose ranges are not all finite does not enter."""

    def __init__(self) -> None:
        self.entered = 0  # batches
        self.left_out = 0
        self._kept: dict[str, np.ndarray] = {}

    def update(self, range_: Tensor) -> bool:
        """Take in a batch's ranges; returns whether they entered."""
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
