"""What a recipe may change of quantizers in the course of a run: bits that fall, scales that become fixed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.quant_layers import is_quantized
from lowbit.nn.quantizer import Quantizer
from lowbit.nn.scale_state import largest_across_ranks
from lowbit.numerics import Calibrated
from lowbit.recipe.recipe import Recipe


def prepare_schedule(model: nn.Layer, recipe: Recipe) -> None:
    """Give quantizers the state that `progressive` and `fix_scales` of a recipe need; `prepare` calls it."""
    if recipe.progressive:
        for quantizer in _forward_quantizers(model):
            bits = quantizer.spec.grid.bits
            if bits is not None and bits < max(stage.bits for stage in recipe.progressive):
                quantizer.vary_bits()
    if recipe.fix_scales:
        dynamic = [layer.input_quantizer for layer in _quantized(model) if _is_dynamic(layer.input_quantizer)]
        if not dynamic:
            raise LowbitError(
                "fix_scales has no effect: no input has scaling dynamic (and `learned`, `moving_average` and "
                "`fixed` are deployed as they are trained); leave it out"
            )
        for quantizer in dynamic:
            quantizer.keep_fixed_range()


def set_bits(model: nn.Layer, bits: int) -> int:
    """Let operands of forward that have fewer bits in the recipe have so many; how many have changed.

    Their scales are unknown then: call `calibrate`.
    """
    changed = 0
    for quantizer in _forward_quantizers(model):
        if "bits" in quantizer._buffers:
            wanted = max(bits, quantizer.spec.grid.bits or 0)
            changed += wanted != int(quantizer.bits.item())
            quantizer.set_bits(wanted)
    return changed


def fix_scales(model: nn.Layer, batches: Iterable[Tensor]) -> int:
    """Fix the dynamic scales of inputs: one per tensor, the mean over the batches; how many inputs.

    What is seen is what the layers get while the model computes as in evaluation, with the scales that it
    has. Training goes on with the fixed ones, which are those that are deployed.
    """
    quantizers = [layer for layer in _quantized(model) if layer.input_quantizer.fixed is not None]
    ranges = {id(layer): Calibrated() for layer in quantizers}

    def look(layer: nn.Layer, inputs: tuple[Tensor, ...]) -> None:
        quantizer, x = layer.input_quantizer, inputs[0]
        alpha = quantizer.alpha
        bound = alpha.value.max() if alpha is not None and alpha.is_known else None
        found = quantizer.spec.observer.range(x, quantizer.grid(), tuple(range(len(x.shape))), bound=bound)
        ranges[id(layer)].update(largest_across_ranks(found).reshape([1]))

    with eval_mode(model), paddle.no_grad(), ExitStack() as undo:
        for layer in quantizers:
            undo.callback(layer.register_forward_pre_hook(look).remove)
        for images in batches:
            model(images)
    # Layers that evaluation does not run, such as classifiers for training alone, are not deployed either.
    seen = [layer for layer in quantizers if ranges[id(layer)].entered]
    for layer in seen:
        layer.input_quantizer.fix_range(ranges[id(layer)].range())
    return len(seen)


def unfix_scales(model: nn.Layer) -> int:
    """Make fixed scales dynamic again, for a run that was extended; returns the number of inputs."""
    fixed = [layer.input_quantizer for layer in _quantized(model) if layer.input_quantizer.has_fixed_scale]
    for quantizer in fixed:
        quantizer.fixed.forget()
    return len(fixed)


def _quantized(model: nn.Layer) -> list[nn.Layer]:
    return [layer for layer in model.sublayers(include_self=True) if is_quantized(layer)]


def _forward_quantizers(model: nn.Layer) -> list[Quantizer]:
    found = [q for layer in _quantized(model) for q in (layer.input_quantizer, layer.weight_quantizer)]
    return [quantizer for quantizer in found if quantizer.spec.grid.is_integer]


def _is_dynamic(quantizer: Quantizer) -> bool:
    return quantizer.spec.grid.is_integer and not quantizer.spec.keeps_scales
