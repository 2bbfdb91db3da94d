"""Blocks with several branches in training and one convolution when deployed: merging them.

RepVGG's and PPLCNetV2's blocks have a method that computes the weights of the one convolution. PaddleClas
calls it before quantization and before export, and so does lowbit. A recipe without quantized gradients is
trained and deployed with merged blocks; low-precision training keeps the branches, and is deployed with them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import paddle
from paddle import nn

from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.quant_layers import has_quantized_layers

_METHODS = ("re_parameterize", "convert_to_deploy")  # PaddleClas's, PaddleDetection's
_BRANCHES = ("rbr_dense", "rbr_1x1", "rbr_identity", "dw_conv_list")  # PaddleClas's, unused once merged
_TOLERANCE = 1e-4  # of the block's largest output


def reparameterize(model: nn.Layer) -> list[str]:
    """Merge the branches of every block that can be merged, in place; returns the blocks' names.

    A block is merged if it gives the same outputs afterwards, on random numbers; one that does not, or that
    has quantized layers, keeps its branches. Branches that are no longer used are taken out, so that weights
    from before do not fit any more: load them first.

    >>> reparameterize(nn.Sequential(nn.Linear(4, 2)))
    []
    """
    return [name for name, block, method in _blocks(model) if _merge(block, method)]


def reparameterized(model: nn.Layer) -> nn.Layer:
    """What is deployed of a model: a copy with merged blocks, or the model itself where there are none.

    >>> model = nn.Sequential(nn.Linear(4, 2))
    >>> reparameterized(model) is model
    True
    """
    if not any(True for _ in _blocks(model)):
        return model
    merged = copy.deepcopy(model)
    reparameterize(merged)
    return merged


def _blocks(model: nn.Layer) -> Iterator[tuple[str, nn.Layer, str]]:
    for name, layer in list(model.named_sublayers()):
        method = next((word for word in _METHODS if callable(getattr(layer, word, None))), None)
        done = getattr(layer, "is_repped", False)
        if method and not done and _first_convolution(layer) and not has_quantized_layers(layer):
            yield name, layer, method


def _merge(block: nn.Layer, method: str) -> bool:
    first = _first_convolution(block)
    numbers = np.random.default_rng(0).standard_normal((1, first._in_channels, 16, 16), dtype=np.float32)
    images, trial = paddle.to_tensor(numbers), copy.deepcopy(block)
    with paddle.no_grad(), eval_mode(block), eval_mode(trial):
        before = block(images)
        getattr(trial, method)()
        limit = _TOLERANCE * max(1.0, float(before.abs().max()))
        if float((trial(images) - before).abs().max()) > limit:
            return False
        getattr(block, method)()
    for name in _BRANCHES:
        if name in block._sub_layers:
            delattr(block, name)
    return True


def _first_convolution(block: nn.Layer) -> nn.Conv2D | None:
    return next((layer for layer in block.sublayers() if isinstance(layer, nn.Conv2D)), None)
