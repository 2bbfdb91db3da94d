"""Fold batch norm into the layer before it for good, where that provably changes no answer."""

from __future__ import annotations

import paddle
from paddle import Tensor, nn

from lowbit.layers.foldable import Folded, find_foldable
from lowbit.layers.folded import folded_weight_and_bias


def fold_batch_norm(model: nn.Layer, *inputs: Tensor) -> Folded:
    """Fold, in place, every batch norm that takes what a layer gives (and nobody else does) into that layer.

    The pairs are found, and proved, by running the model on `inputs`. The batch norm's place is taken by an
    nn.Identity, the layer gets a bias. Answers in evaluation stay the same but for last bits. Make the
    optimizer after.

    fold_batch_norm(model, paddle.randn([2, 3, 224, 224])).left_alone
    """
    found = find_foldable(model, *inputs)
    layers = dict(model.named_sublayers())
    for name, norm_name in found.pairs:
        layer, norm = layers[name], layers[norm_name]
        with paddle.no_grad():
            weight, bias = folded_weight_and_bias(layer, norm)
        layer.weight.set_value(weight)
        if layer.bias is None:
            layer.bias = layer.create_parameter(bias.shape, dtype=layer.weight.dtype, is_bias=True)
        layer.bias.set_value(bias)
        _replace(model, norm, nn.Identity())
    return found


def _replace(model: nn.Layer, old: nn.Layer, new: nn.Layer) -> None:
    """Put `new` wherever the model holds `old`."""
    for parent in model.sublayers(include_self=True):
        for key, child in parent.named_children():
            if child is old:
                setattr(parent, key, new)
