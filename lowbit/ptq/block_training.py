"""The training of one block: its quantized form learns to give the outputs of the fp32 network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.nn.bn_folding import along_weight
from lowbit.nn.eval_mode import eval_mode
from lowbit.ptq.block_data import BlockData, ImageWindow
from lowbit.ptq.blocks import Block
from lowbit.ptq.compensation import is_compensated
from lowbit.ptq.learned_rounding import (
    LearnedRounding,
    LearnedStep,
    MovingWeight,
    hidden,
    parameter,
    quantizers_of,
    shift_channels,
    undecided,
)
from lowbit.recipe.recipe import Reconstruction

_ITERATIONS = 400  # that the learning rates are meant for
_WARM_UP = 0.2  # share of the iterations in which nothing pushes weights to up or down
_FIRST_POWER, _LAST_POWER = 20.0, 2.0  # of `undecided`


def train_block(
    layers: Mapping[str, nn.Layer],
    block: Block,
    norms: Mapping[int, nn.Layer],
    data: BlockData,
    window: ImageWindow,
    settings: Reconstruction,
    rng: np.random.Generator,
    *,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Train the block's rounding, steps, batch norms and biases, in place.

    `layers` are those of the quantized network by name, `norms` the batch norms (with weight and bias) that
    can be folded into a layer, by the layer's identity.
    """
    modules = [layers[name] for name in block.modules]
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(eval_mode(module))
        parts = LearnedParts(modules, norms, settings, settings.drop, rng)
        stack.enter_context(parts.installed())
        stack.enter_context(paddle.enable_grad())
        faster = _ITERATIONS / max(1, settings.iterations)
        rates = settings.learning_rate, settings.step_learning_rate, settings.norm_learning_rate
        optimizers = parts.optimizers([rate * faster for rate in rates])
        for iteration in range(settings.iterations):
            x, target, mask = window.batch(data, settings.batch_size, settings.drop, rng)
            shares = parts.renew_weights()
            loss = _mean_over_pixels(block.run(layers, x) - target, mask)
            progress = iteration / settings.iterations
            if progress >= _WARM_UP and settings.regularization:
                power = _power((progress - _WARM_UP) / (1 - _WARM_UP))
                for share in shares:
                    loss = loss + settings.regularization * undecided(share, power)
            loss.backward()
            slowed = (1 + math.cos(math.pi * progress)) / 2
            for what, (optimizer, rate) in optimizers.items():
                # The penalty decides the rounding, and needs the whole rate for it.
                optimizer.set_lr(rate if what == "weights" else rate * slowed)
                optimizer.step()
                optimizer.clear_grad()
            advance()
    parts.finish()


def _power(progress: float) -> float:
    return _LAST_POWER + (_FIRST_POWER - _LAST_POWER) * (1 + math.cos(math.pi * progress)) / 2


def _mean_over_pixels(wrong: Tensor, mask: Tensor | None) -> Tensor:
    """The squares, summed over channels and averaged over images and pixels."""
    channels = wrong.shape[1] if wrong.ndim > 1 else 1
    if mask is None:
        return (wrong * wrong).mean() * channels
    return (wrong * wrong * mask).sum() / mask.sum()


class LearnedParts:
    """The parameters that are learned in some modules, and how they replace the modules' own.

    Weights learn whether to be rounded up or down; with `moving` they learn straight through the rounding.
    A share `drop` of the inputs' values stays unquantized.
    """

    def __init__(
        self,
        modules: list[nn.Layer],
        norms: Mapping[int, nn.Layer],
        settings: Reconstruction,
        drop: float,
        rng: np.random.Generator,
        *,
        moving: bool = False,
    ) -> None:
        learns = settings.step_learning_rate > 0
        found = [each for module in modules for each in quantizers_of(module)]
        never_run = {id(owner) for owner, _, quantizer in found if not quantizer.is_ready}
        found = [each for each in found if id(each[0]) not in never_run]
        self._steps = [
            (owner, name, LearnedStep(quantizer, drop, int(rng.integers(1 << 62)), learns=learns))
            for owner, name, quantizer in found
            if quantizer.role != "weight"
        ]
        inside = {id(layer) for module in modules for layer in module.sublayers(include_self=True)}
        self._layers = [
            _Layer(
                owner,
                norms[id(owner)] if id(norms.get(id(owner))) in inside else None,
                MovingWeight(owner.weight, quantizer)
                if moving
                else LearnedRounding(
                    owner.weight, quantizer, compensated=settings.compensate and is_compensated(owner)
                ),
            )
            for owner, _, quantizer in found
            if quantizer.role == "weight"
        ]
        self.values = {
            "weights": [layer.rounding.value for layer in self._layers],
            "steps": [step.value for *_, step in self._steps if not step.value.stop_gradient],
            "norms": [each for layer in self._layers for each in layer.affine],
        }

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within it the modules compute with what learns."""
        with ExitStack() as undo:
            for owner, name, step in self._steps:
                undo.enter_context(hidden(owner, name, step))
            for layer in self._layers:
                undo.enter_context(hidden(layer.layer, "weight_quantizer", lambda weight: weight))
                undo.enter_context(hidden(layer.layer, "effective_weight_and_bias", layer.weight_and_bias))
                if layer.norm is not None:
                    undo.enter_context(hidden(layer.norm, "forward", layer.shifted))
            yield

    def renew_weights(self) -> list[Tensor]:
        """Make the weights of this iteration; how far up each of them is, where that is learned."""
        shares = [layer.renew() for layer in self._layers]
        return [share for share in shares if share is not None]

    def decay_weights(self, share: float) -> None:
        """Move moving weights by this share of the way back to where they began."""
        with paddle.no_grad():
            for layer in self._layers:
                layer.rounding.decay(share)

    def optimizers(self, rates: Sequence[float]) -> dict[str, tuple[paddle.optimizer.Optimizer, float]]:
        """Adam for weights, steps, and norms with biases, each with its rate; none where the rate is 0."""
        return {
            what: (paddle.optimizer.Adam(rate, parameters=values), rate)
            for (what, values), rate in zip(self.values.items(), rates, strict=True)
            if values and rate > 0
        }

    def calls(self) -> list[int]:
        """How often each input has been quantized, which decides what is dropped."""
        return [step.calls for *_, step in self._steps]

    def set_calls(self, calls: Sequence[int]) -> None:
        """Go on where `calls` was asked for."""
        for (*_, step), count in zip(self._steps, calls, strict=True):
            step.calls = count

    def finish(self) -> None:
        """Write what was learned into the layers, their batch norms and quantizers."""
        with paddle.no_grad():
            for layer in self._layers:
                layer.finish()
            for *_, step in self._steps:
                step.finish()


class _Layer:
    """A quantized layer in training: its weight's rounding, and gain and shift of what comes out of it.

    With its batch norm folded in, the layer computes gain·(w·x) + shift; the batch norm does nothing. Gain
    and shift change by factors that are learned: they come to a scale of the weight and a bias per channel.
    """

    def __init__(
        self, layer: nn.Layer, norm: nn.Layer | None, rounding: LearnedRounding | MovingWeight
    ) -> None:
        self.layer, self.norm, self.rounding = layer, norm, rounding
        self.affine: list[Tensor] = []
        self._weight: Any = None  # of this iteration
        self._gain: Any = None
        self._shift: Any = None
        outputs = layer.weight.shape[1] if isinstance(layer, nn.Linear) else layer._out_channels
        zeros = np.zeros([outputs], np.float32)
        with paddle.no_grad():
            bias = paddle.zeros([outputs]) if layer.bias is None else layer.bias.detach().clone()
            if norm is not None:
                self._deviation = paddle.sqrt(norm._variance + norm._epsilon)
                self._norm_weight, self._norm_bias = norm.weight.detach().clone(), norm.bias.detach().clone()
                self._centred = bias - norm._mean
                self._gain, self._shift = parameter(zeros), parameter(zeros)
                self.affine = [self._gain, self._shift]
            else:
                self._bias = bias
                # In units of a typical weight, since the size of what comes out is not known here.
                self._unit = float(layer.weight.detach().abs().mean())
                if layer.bias is not None:
                    self._shift = parameter(zeros)
                    self.affine = [self._shift]

    def renew(self) -> Tensor | None:
        """The weight of this iteration; returns the shares of its rounding, where these are learned."""
        self._weight, share = self.rounding.learning()
        return share

    def weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        """What the layer multiplies and adds in training."""
        if self.norm is None:
            return self._weight, self._new_bias()
        return self._weight * along_weight(self.layer, self._new_gain()), None

    def shifted(self, x: Tensor) -> Tensor:
        """What the batch norm gives in training: the gain is in the weight already."""
        axis = -1 if self.norm._data_format.endswith("C") else 1
        return shift_channels(x, self._new_norm_bias() + self._new_gain() * self._centred, axis)

    def _new_gain(self) -> Tensor:
        return self._norm_weight * (1 + self._gain) / self._deviation

    def _new_bias(self) -> Tensor | None:
        return None if self._shift is None else self._bias + self._unit * self._shift

    def _new_norm_bias(self) -> Tensor:
        return self._norm_bias + self._norm_weight.abs() * self._shift

    def finish(self) -> None:
        """Write what was learned."""
        self.layer.weight.set_value(self.rounding.hard())
        if self.norm is None:
            if self._shift is not None:
                self.layer.bias.set_value(self._new_bias())
            return
        self.norm.weight.set_value(self._norm_weight * (1 + self._gain))
        self.norm.bias.set_value(self._new_norm_bias())
