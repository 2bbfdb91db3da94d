"""The range of a tensor after many batches, as buffers that a checkpoint saves and an export carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.numerics import Scaling

_COUNTS = ("entered", "left_out")


class KeptRange(nn.Layer):
    """A state of lowbit.numerics.scale whose arrays are buffers; `range` is what it comes to.

    Every update reads the buffers and writes them back: they are the only state, so `set_state_dict` and
    `deepcopy` need nothing more.

    >>> kept = KeptRange(parse_scaling("moving_average(0.5)"), [1])
    >>> kept.update(paddle.to_tensor([2.0])), kept.update(paddle.to_tensor([float("nan")]))
    (True, False)
    >>> kept.range.item(), kept.left_out.item()
    (2.0, 1)
    """

    def __init__(self, scaling: Scaling, shape: Sequence[int]) -> None:
        super().__init__()
        self._scaling = scaling
        example = scaling.new_state()
        example.update(paddle.zeros(list(shape)))
        self.register_buffer("range", paddle.zeros(list(shape)))
        for name, value in self._full_size(example.state_dict()).items():
            self.register_buffer(name, paddle.to_tensor(np.zeros_like(value)))

    @property
    def is_known(self) -> bool:
        """Whether a batch has entered."""
        return bool(self._buffers["entered"].item())

    def update(self, range_: Tensor) -> bool:
        """Take in a batch's ranges; one that is not finite is counted and left out. Returns if it entered."""
        state = self._scaling.new_state()
        state.load_state_dict(self._saved())
        entered = state.update(range_.reshape(self._buffers["range"].shape))
        for name, value in self._full_size(state.state_dict()).items():
            self._buffers[name].set_value(value)
        if entered:
            self._buffers["range"].set_value(state.range())
        return entered

    def _saved(self) -> dict[str, Any]:
        entered = int(self._buffers["entered"].item())
        saved = {name: self._buffers[name].numpy() for name in self._buffers if name != "range"}
        if not entered:
            return {name: saved[name].item() for name in _COUNTS}
        if "batches" in saved:
            saved["batches"] = saved["batches"][:entered]
        return saved | {name: saved[name].item() for name in _COUNTS}

    def _full_size(self, state: dict[str, Any]) -> dict[str, np.ndarray]:
        """The arrays of a state; a window in its final length, since shapes in checkpoints must agree."""
        arrays = {name: np.atleast_1d(np.asarray(value)) for name, value in state.items()}
        if "batches" in arrays:
            window = np.zeros((int(self._scaling.parameter), *arrays["batches"].shape[1:]), np.float32)
            window[: len(arrays["batches"])] = arrays["batches"]
            arrays["batches"] = window
        return arrays
