"""Loss scaling for fp16: small gradients are lifted onto the grid, and a step that overflowed is left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, _C_ops

from lowbit.errors import LowbitError

# Outside these the scale has lost its purpose: below 1 it would push small gradients off the grid, and
# far above, an ordinary loss overflows even in fp32.
_SMALLEST, _LARGEST = 1.0, 2.0**31

_SETTINGS = ("incr_ratio", "decr_ratio", "incr_every_n_steps", "decr_every_n_nan_or_inf")


class LossScaler:
    """Multiplies the loss, divides the gradients, and adapts the factor to what overflowed.

    After `incr_every_n_steps` good steps in a row the scale grows by `incr_ratio`; after
    `decr_every_n_nan_or_inf` bad ones it shrinks by `decr_ratio`. Names, defaults and the saved state
    are those of `paddle.amp.GradScaler`, which does nothing on a CPU. Ratios that are powers of two
    keep scaling and unscaling exact.

    >>> scaler.scale(loss).backward()
    >>> finite = scaler.unscale_(model.parameters())
    >>> if finite:
    ...     optimizer.step()
    >>> scaler.update(finite)
    """

    def __init__(
        self,
        *,
        init_loss_scaling: float = 2.0**16,
        incr_ratio: float = 2.0,
        decr_ratio: float = 0.5,
        incr_every_n_steps: int = 2000,
        decr_every_n_nan_or_inf: int = 1,
        use_dynamic_loss_scaling: bool = True,
    ) -> None:
        if not _SMALLEST <= init_loss_scaling <= _LARGEST:
            raise LowbitError(
                f"a loss scale of {init_loss_scaling:g} is no use: give one from {_SMALLEST:g} to 2**31"
            )
        if incr_ratio <= 1 or not 0 < decr_ratio < 1 or incr_every_n_steps < 1 or decr_every_n_nan_or_inf < 1:
            raise LowbitError(
                "a loss scale grows by a ratio above 1 and shrinks by one between 0 and 1, each after at "
                f"least 1 step; given: {incr_ratio=}, {decr_ratio=}, {incr_every_n_steps=}, "
                f"{decr_every_n_nan_or_inf=}"
            )
        self.value = float(init_loss_scaling)
        self.incr_ratio = incr_ratio
        self.decr_ratio = decr_ratio
        self.incr_every_n_steps = incr_every_n_steps
        self.decr_every_n_nan_or_inf = decr_every_n_nan_or_inf
        self.use_dynamic_loss_scaling = use_dynamic_loss_scaling
        self._good_steps = 0
        self._bad_steps = 0

    def scale(self, loss: Tensor) -> Tensor:
        """The loss to call `backward()` on."""
        return loss if self.value == 1.0 else loss * self.value

    def unscale_(self, parameters: Iterable[Tensor]) -> bool:
        """Divide the gradients by the scale, in place; returns whether all of them are finite.

        When they are not, their values are of no use and the step must be left out.
        """
        if self.value == 1.0:
            return gradients_are_finite(parameters)
        gradients = _gradients(parameters)
        if not gradients:
            return True
        _, found = _C_ops.check_finite_and_unscale_(gradients, paddle.to_tensor([self.value]))
        return not bool(found)

    def update(self, finite: bool) -> None:
        """Adapt the scale to the step that was just made (`finite`) or left out."""
        if not self.use_dynamic_loss_scaling:
            return
        if finite:
            self._bad_steps = 0
            self._good_steps += 1
            if self._good_steps == self.incr_every_n_steps:
                self.value = min(self.value * self.incr_ratio, _LARGEST)
                self._good_steps = 0
        else:
            self._good_steps = 0
            self._bad_steps += 1
            if self._bad_steps == self.decr_every_n_nan_or_inf:
                self.value = max(self.value * self.decr_ratio, _SMALLEST)
                self._bad_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs to continue as if undisturbed."""
        return {
            "scale": self.value,
            **{word: getattr(self, word) for word in _SETTINGS},
            "incr_count": self._good_steps,
            "decr_count": self._bad_steps,
            "use_dynamic_loss_scaling": self.use_dynamic_loss_scaling,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state, one of `paddle.amp.GradScaler`'s included."""
        missing = [word for word in self.state_dict() if word not in state]
        if missing:
            raise LowbitError(
                f"a saved loss scaler lacks {', '.join(missing)}: the checkpoint is of a run without fp16 "
                "loss scaling; resume it with the precision that it was started with"
            )
        numbers = [np.asarray(value) for word, value in state.items() if word in self.state_dict()]
        if any(number.size != 1 or number.dtype.kind not in "fiub" or number < 0 for number in numbers):
            raise LowbitError("a saved loss scaler holds something else than numbers: use another checkpoint")
        # GradScaler saves its scale as an array of one value.
        self.value = float(np.asarray(state["scale"]).item())
        if not _SMALLEST <= self.value <= _LARGEST:
            raise LowbitError(f"a saved loss scale of {self.value:g} is no use: use another checkpoint")
        for word in _SETTINGS:
            setattr(self, word, state[word])
        self._good_steps = int(state["incr_count"])
        self._bad_steps = int(state["decr_count"])
        self.use_dynamic_loss_scaling = bool(state["use_dynamic_loss_scaling"])


def gradients_are_finite(parameters: Iterable[Tensor]) -> bool:
    """Whether no gradient holds NaN or Inf; one read of each, and one answer for all.

    A norm above 1e19 counts as overflow too: its square, which clipping needs, is not finite.
    """
    norms = [_C_ops.squared_l2_norm(gradient) for gradient in _gradients(parameters)]
    return not norms or bool(paddle.isfinite(paddle.add_n(norms)))


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    gradients = (parameter.grad for parameter in parameters)
    return [gradient for gradient in gradients if gradient is not None]
