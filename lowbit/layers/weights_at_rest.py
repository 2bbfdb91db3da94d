"""What a model's weights are on their grids, looked at between two steps: health, scale, histogram."""

from __future__ import annotations

from contextlib import suppress

from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.layers.quantized import is_quantized
from lowbit.numerics.exact import as_float32
from lowbit.numerics.stats import LevelHistogram, QuantStats, level_histogram, measure_stats, value_histogram
from lowbit.recipe.model_layers import find_layers

_ENOUGH = 1 << 20  # values that stand for a weight in its health


def weight_health(layer: nn.Layer) -> QuantStats | None:
    """What quantizing does to a layer's weight, as in evaluation; None where the weight is on no grid.

    weight_health(model.conv1).sqnr
    """
    if not _is_on_grid(layer):
        return None
    weight, integers, scale = _on_grid(layer)
    grid = layer.weight_quantizer.grid()
    return measure_stats(weight, integers, scale, lowest=grid.lowest, highest=grid.highest, most=_ENOUGH)


def kept_scales(layer: nn.Layer) -> dict[str, float]:
    """The scales of a layer's operands of forward, each the mean over its groups, as far as they have any.

    >>> kept_scales(nn.Linear(2, 2))
    {}
    """
    found: dict[str, float] = {}
    if not is_quantized(layer):
        return found
    quantizer = layer.input_quantizer
    if quantizer.gives_integers and quantizer.spec.keeps_scales:
        with suppress(LowbitError):  # no finite batch has come by yet: there is no scale to speak of
            found["forward.input"] = float(quantizer.scale().mean())
    if _is_on_grid(layer):
        found["forward.weight"] = float(_on_grid(layer)[2].mean())
    return found


def weight_histogram(layer: nn.Layer) -> LevelHistogram:
    """A layer's weight in steps of its grid, each channel by its own scale; or plainly, without a grid."""
    if not _is_on_grid(layer):
        return value_histogram(layer.weight.numpy())
    weight, _, scale = _on_grid(layer)
    grid = layer.weight_quantizer.grid()
    return level_histogram(weight.numpy() / scale.numpy(), grid.lowest, grid.highest)


def layers_by_name(model: nn.Layer) -> dict[str, nn.Layer]:
    """The layers that can be quantized, by the names that plans give them, in the model's order.

    >>> list(layers_by_name(nn.Sequential(nn.Linear(2, 2), nn.ReLU())))
    ['0']
    """
    by_name = dict(model.named_sublayers(remove_duplicate=False))
    return {layer.name: by_name[layer.name] for layer in find_layers(model)}


def _is_on_grid(layer: nn.Layer) -> bool:
    return is_quantized(layer) and layer.weight_quantizer.gives_integers


def _on_grid(layer: nn.Layer) -> tuple[Tensor, Tensor, Tensor]:
    """The weight that is quantized (with a folded batch norm, not the parameter), its integers and scale."""
    weight = as_float32(layer.effective_weight_and_bias()[0].detach())
    return weight, *layer.weight_quantizer.integers(weight)
