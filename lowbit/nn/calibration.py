"""Calibration: choosing scales from a few batches, and correcting biases for rounded weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.nn.bn_folding import absorb_batch_norms
from lowbit.nn.eval_mode import eval_mode, explained
from lowbit.nn.exact_rounding import align_scales
from lowbit.nn.int_forward import forward_is_of_integers, per_output
from lowbit.nn.quant_layers import is_quantized
from lowbit.nn.quantizer import Quantizer
from lowbit.nn.scale_state import mean_across_ranks
from lowbit.numerics.exact import multiply


def calibrate(model: nn.Layer, batches: Iterable[Tensor | Sequence[Tensor]]) -> int:
    """Run the batches through the unquantized model and initialize ranges, steps, bounds and signs.

    What is known already (trained, or loaded from a checkpoint) stays. A batch is the model's input, or the
    list of its inputs. The model computes as in evaluation and comes back as it was, but for batch norms that
    the recipe folds at calibration. Returns the number of batches. With the observer `sensitivity` a batch
    needs as much memory as in training.

    calibrate(model, (images for images, labels in itertools.islice(loader, 20)))
    """
    quantizers = find_quantizers(model)
    if not quantizers:
        raise LowbitError("the model has no quantizers to calibrate: prepare it with a recipe first")
    absorb_batch_norms(model)
    count = 0
    try:
        for quantizer in quantizers:
            quantizer.start_calibration()
        with eval_mode(model):
            for batch in batches:
                inputs = [batch] if isinstance(batch, Tensor) else batch
                _show(model, inputs, quantizers, seed=count)
                count += 1
    finally:
        for quantizer in quantizers:
            quantizer.end_calibration()
    if not count:
        raise LowbitError("calibration got no batches: the scales are as unknown as before")
    return count


def _show(model: nn.Layer, inputs: Sequence[Tensor], quantizers: list[Quantizer], *, seed: int) -> None:
    """Run the model on a batch and let the quantizers observe it, and gradients of the outputs if needed.

    Those are of a sum of all answers with random signs, whose square is, on average, that of all answers'
    gradients added up.
    """
    all_stats = (quantizer.calibration_stats for quantizer in quantizers)
    watching = [stats for stats in all_stats if stats is not None and stats.wants_gradients]
    if not watching:
        with explained(model, inputs):
            model(*inputs)
        return
    with paddle.enable_grad(), _fixed_parameters(model):
        with explained(model, inputs):
            answers = model(*inputs)
        _with_random_signs(answers, np.random.default_rng(seed)).backward()
    for stats in watching:
        for x in stats.take_waiting():
            stats.weigh(x, x.grad)


@contextmanager
def _fixed_parameters(model: nn.Layer) -> Iterator[None]:
    """Within it, a backward pass does not change the parameters' gradients."""
    trained = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
    for parameter in trained:
        parameter.stop_gradient = True
    try:
        yield
    finally:
        for parameter in trained:
            parameter.stop_gradient = False


def _with_random_signs(answers: Any, rng: np.random.Generator) -> Tensor:
    total = paddle.zeros([])
    for out in paddle.utils.flatten(answers):
        if isinstance(out, Tensor) and out.is_floating_point():
            signs = paddle.to_tensor(rng.choice(np.array([-1, 1], np.float32), out.shape))
            total = total + (out.cast("float32") * signs).sum()
    return total


def find_quantizers(model: nn.Layer) -> list[Quantizer]:
    """The quantizers of a prepared model, in its order."""
    return [layer for layer in model.sublayers(include_self=True) if isinstance(layer, Quantizer)]


# Bias correction: the mean error that rounded weights add to a layer's outputs is subtracted from its bias.
#
# A weight's rounding errors are the same for every image. Where inputs have a nonzero mean, as after a
# ReLU, they shift whole channels, most in depthwise convolutions, which sum few products. The shift from
# quantizing the *input* is not corrected: it is the mean of rare, large, clipped values, and spreading it
# over all other outputs makes them worse.


_HIDDEN = 1e-12  # a batch norm's gain below which nothing of a channel is left


def correct_biases(model: nn.Layer, batches: Iterable[Tensor | Sequence[Tensor]]) -> int:
    """Subtract the mean of (Q(W) - W)·Q(x) from the bias of every quantized layer; returns their number.

    Once, behind `calibrate` and on its batches: a second time would take it out twice. The layers have a
    bias if the model was prepared with `calibration: {correct_bias: true}`.

    calibrate(model, batches)
    correct_biases(model, batches)
    """
    align_scales(model)
    layers = [layer for layer in model.sublayers(include_self=True) if is_quantized(layer)]
    if without := [layer for layer in layers if layer.bias is None]:
        raise LowbitError(
            f"{len(without)} quantized layers have no bias to correct: prepare the model with a recipe that "
            "has calibration: {steps: 10, correct_bias: true}"
        )
    shifts: dict[int, list[Tensor]] = {id(layer): [] for layer in layers}

    def look(layer: nn.Layer, given: Sequence[Any], _output: Tensor) -> None:
        shifts[id(layer)].append(mean_across_ranks(_shift(layer, *given)))

    hooks = [layer.register_forward_post_hook(look) for layer in layers]
    try:
        with eval_mode(model):
            for batch in batches:
                model(*batch) if isinstance(batch, list | tuple) else model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    corrected = 0
    for layer in layers:
        if not (seen := shifts[id(layer)]):
            continue
        shift = paddle.add_n(seen) / len(seen)
        if bool(paddle.isfinite(shift).all()):
            layer.bias.set_value(layer.bias - shift.cast(layer.bias.dtype))
            corrected += 1
    round_biases(model)
    return corrected


# On layers with `outputs: quantized`: the batch norm that is folded into them when they are exported.
FOLDED_NORM = "_lowbit_folded_norm"


@dataclass(frozen=True, eq=False)
class FoldedNorm:
    """A batch norm, or None; a sublayer of another module."""

    norm: nn.Layer | None


def round_biases(model: nn.Layer) -> int:
    """Put the bias of layers on the grid of their sums, with `outputs: quantized`; returns how many layers.

    Integer operators add a bias to sums of integers, whose step is input scale · weight scale. Rounded here,
    the model computes what the file does. What is rounded is the bias of a layer and its batch norm
    together, as they are exported. A channel that batch norm hides stays.
    """
    rounded = 0
    with eval_mode(model):
        for layer in model.sublayers(include_self=True):
            behind = getattr(layer, FOLDED_NORM, None)
            if behind is None or layer.bias is None or not forward_is_of_integers(layer):
                continue
            if layer.input_quantizer.is_ready:  # else it never runs
                bias = _on_grid_of_sums(layer, behind.norm)
                layer.bias.set_value(paddle.to_tensor(bias).cast(layer.bias.dtype))
                rounded += 1
    return rounded


def _on_grid_of_sums(layer: nn.Layer, norm: nn.Layer | None) -> np.ndarray:
    """The bias nearest to the layer's with which bias and batch norm together are whole steps of its sums."""
    weight, bias = layer.effective_weight_and_bias()
    _, weight_scale = layer.weight_quantizer.integers(weight)
    step = multiply(layer.input_quantizer.scale(), per_output(layer, weight_scale)).numpy().reshape([-1])
    bias = bias.numpy().astype(np.float64)
    step = np.broadcast_to(step, bias.shape).astype(np.float64)
    shift = np.zeros_like(bias)  # what batch norm adds, in units of the layer's own output
    if norm is not None:
        gain = 1 / np.sqrt(norm._variance.numpy().astype(np.float64) + norm._epsilon)
        gain = gain * (1 if norm.weight is None else norm.weight.numpy())
        shift = -norm._mean.numpy().astype(np.float64)
        added = np.zeros_like(bias) if norm.bias is None else norm.bias.numpy().astype(np.float64)
        hidden = np.abs(gain) < _HIDDEN
        shift = np.where(hidden, 0, shift + added / np.where(hidden, 1, gain))
    else:
        hidden = np.zeros(bias.shape, bool)
    rounded = np.rint((bias + shift) / step) * step - shift
    return np.where(hidden | (np.abs(bias + shift) > step * 2**30), bias, rounded)


def give_bias(layer: nn.Layer) -> None:
    """Give a layer without a bias one of zeros."""
    if layer.bias is None:
        outputs = layer.weight.shape[1] if isinstance(layer, nn.Linear) else layer._out_channels
        layer.bias = layer.create_parameter([outputs], dtype=layer.weight.dtype, is_bias=True)


def _shift(layer: nn.Layer, x: Tensor, *geometry: Any) -> Tensor:
    """What rounding the weight adds to each output channel, averaged over the batch."""
    weight, _ = layer.effective_weight_and_bias()
    error = layer.weight_quantizer(weight) - weight
    added = layer.product(layer.input_quantizer(x), error, None, *geometry)
    channels = added.ndim - 1 if isinstance(layer, nn.Linear) or layer._data_format.endswith("C") else 1
    return added.mean([axis for axis in range(added.ndim) if axis != channels])
