"""Oscillating weights in quantization-aware training: measured, damped or frozen.

Near the middle of two integers a weight's gradient pushes it back as soon as it has crossed: the integer goes
up, down and up again for as long as training lasts, and batch norm's statistics follow it (Nagel et al.,
*Overcoming Oscillations in Quantization-Aware Training*, 2022). With `oscillation` in the recipe every
quantized weight has an `OscillationState`, a sublayer of its quantizer, so that checkpoints hold it.
"""

from __future__ import annotations

import math

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.nn.quant_layers import is_quantized
from lowbit.numerics.exact import as_float32
from lowbit.recipe.recipe import Oscillation

OSCILLATING = 0.005  # changes of direction a step, as a moving average: the paper's bound
_STATE = "oscillation"  # the name of the sublayer


class OscillationState(nn.Layer):
    """How often each integer of a weight has turned around, as a moving average over the steps.

    `integers` are those after the last step, `direction` is the sign of each one's last change, `mean` the
    moving average of the integers; what is `frozen` keeps its integer.

    >>> state = OscillationState([1], momentum=0.5)
    >>> for integer in (0, 1, 0):
    ...     state.update(np.array([integer]))
    >>> state.frequency.tolist()
    [0.5]
    """

    def __init__(self, shape: list[int], *, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        for name in ("integers", "direction", "frozen"):
            self.register_buffer(name, paddle.zeros(shape, "int32"))
        for name in ("frequency", "mean"):
            self.register_buffer(name, paddle.zeros(shape, "float32"))
        self.register_buffer("started", paddle.zeros([1], "int32"))

    def update(self, integers: np.ndarray) -> None:
        """Take in the integers after a step."""
        integers = integers.astype(np.int32)
        if not int(self.started.item()):
            self._set(integers=integers, mean=integers.astype(np.float32), started=np.ones(1, np.int32))
            return
        change = np.sign(integers - self.integers.numpy())
        before = self.direction.numpy()
        turned = (change * before < 0).astype(np.float32)
        rate = np.float32(self.momentum)
        keep = np.float32(1) - rate
        self._set(
            integers=integers,
            direction=np.where(change != 0, change, before).astype(np.int32),
            frequency=rate * turned + keep * self.frequency.numpy(),
            mean=rate * integers.astype(np.float32) + keep * self.mean.numpy(),
        )

    def freeze(self, above: float) -> np.ndarray:
        """Freeze what turns around more often, at the integer that its mean is next to; returns all frozen.

        The integers of those are what they are frozen at.
        """
        frozen, integers = self.frozen.numpy() != 0, self.integers.numpy()
        new = (self.frequency.numpy() > np.float32(above)) & ~frozen
        if new.any():
            integers = np.where(new, np.round(self.mean.numpy()), integers).astype(np.int32)
            frozen = frozen | new
            self._set(integers=integers, frozen=frozen.astype(np.int32))
        return frozen

    def shares(self) -> dict[str, float]:
        """The shares of weights that oscillate (more often than 0.005 times a step), and that are frozen."""
        frozen = self.frozen.numpy() != 0
        moving = (self.frequency.numpy() > OSCILLATING) & ~frozen
        return {"oscillating": float(moving.mean()), "frozen": float(frozen.mean())}

    def _set(self, **values: np.ndarray) -> None:
        for name, value in values.items():
            self._buffers[name].set_value(value)


def track_oscillations(model: nn.Layer, settings: Oscillation) -> None:
    """Give every quantized weight of a model an `OscillationState`; `prepare` calls it."""
    for layer in model.sublayers(include_self=True):
        if is_quantized(layer) and layer.weight_quantizer.gives_integers:
            state = OscillationState(layer.weight.shape, momentum=settings.momentum)
            setattr(layer.weight_quantizer, _STATE, state)


def oscillation_of(layer: nn.Layer) -> OscillationState | None:
    """The state of a quantized layer's weight; None where it is not tracked."""
    return layer.weight_quantizer._sub_layers.get(_STATE) if is_quantized(layer) else None


class OscillationControl:
    """Damps or freezes oscillating weights of a prepared model, as its recipe says.

    control = OscillationControl(net, recipe.oscillation)
    for step, (x, y) in enumerate(batches):
        loss(net(x), y).backward()
        control.damp(step / steps)
        optimizer.step()
        control.update()
        optimizer.clear_grad()
    """

    def __init__(self, model: nn.Layer, settings: Oscillation) -> None:
        self._settings = settings
        found = ((layer, oscillation_of(layer)) for layer in model.sublayers(include_self=True))
        self._layers = [(layer, state) for layer, state in found if state is not None]
        if not self._layers:
            raise LowbitError("the model's recipe does not track oscillation: give it `oscillation: {}`")
        midrise = [layer for layer, _ in self._layers if layer.weight_quantizer.grid().midrise]
        if midrise and settings.freeze is not None:
            raise LowbitError(
                f"oscillation.freeze rounds weights to any integer, and {midrise[0].weight_quantizer.grid()} "
                "has odd ones only: leave out freeze, or choose another grid"
            )

    @paddle.no_grad()
    def damp(self, progress: float) -> None:
        """Add to the gradients that of strength * (weight - its value on the grid)², in `progress` 0 to 1.

        The strength rises from 0 to `damp` along a cosine: early on weights shall find their integers.
        """
        strength = self._settings.damp * (1 - math.cos(math.pi * progress)) / 2
        if not strength:
            return
        for layer, _ in self._layers:
            if layer.weight.grad is None:
                continue
            integers, scale = layer.weight_quantizer.integers(layer.weight)
            grid = layer.weight_quantizer.grid()
            inside = paddle.minimum(
                paddle.maximum(as_float32(layer.weight), scale * grid.lowest), scale * grid.highest
            )
            layer.weight.grad.add_((2 * strength * (inside - integers * scale)).astype(layer.weight.dtype))

    @paddle.no_grad()
    def update(self) -> None:
        """Look at the integers after an optimizer's step; put frozen weights back on theirs."""
        for layer, state in self._layers:
            integers, scale = layer.weight_quantizer.integers(layer.effective_weight_and_bias()[0])
            if self._settings.freeze is None:
                state.update(integers.numpy())
                continue
            held = state.integers.numpy()
            state.update(np.where(state.frozen.numpy() != 0, held, integers.numpy()))
            frozen = state.freeze(self._settings.freeze)
            if frozen.any():
                _put_on_grid(layer, state, frozen, scale)


def _put_on_grid(layer: nn.Layer, state: OscillationState, frozen: np.ndarray, scale: Tensor) -> None:
    weight = layer.weight.astype("float32").numpy()
    values = state.integers.numpy().astype(np.float32) * scale.numpy()
    moved = np.where(frozen, values, weight)
    layer.weight.set_value(paddle.to_tensor(moved).astype(layer.weight.dtype))
