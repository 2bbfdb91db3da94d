"""Products of two activations, such as attention's QKᵀ and AV, as layers whose operands can sit on grids.

A function call inside of somebody's forward cannot be quantized; a layer can. So a product is quantized
where it is a `Matmul` layer: in a network of the user's own, or in attention layers that lowbit knows, whose
forward is replaced by one that computes the same with two such layers (`KNOWN_ATTENTION`). Whether it does is
tried on random numbers when a model is prepared; a layer whose answers differ stays as it is, with a note.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F

from lowbit.accel.op_overrides import change_class
from lowbit.errors import LowbitError
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.quantizer import Quantizer
from lowbit.recipe.recipe import ActivationMatmul

SIDES = ("left", "right")
_LAYOUT = "NCHW"
_TOLERANCE = 1e-4  # of the largest answer


class Matmul(nn.Layer):
    """`paddle.matmul` of two activations as a layer; `prepare` quantizes it if the recipe has `matmul`.

    >>> product = Matmul()
    >>> product(paddle.ones([1, 2, 3]), paddle.ones([1, 3, 2])).tolist()
    [[[3.0, 3.0], [3.0, 3.0]]]
    """

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return paddle.matmul(x, y)


class QuantizedMatmul(Matmul):
    """A `Matmul` with both operands on grids; in low-precision training the gradient of its output, too."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = paddle.matmul(self.left_quantizer(x), self.right_quantizer(y))
        if self.training and self.gradient_quantizer is not None and not z.stop_gradient:
            return _QuantizedGradient.apply(z, self.gradient_quantizer)
        return z


class _QuantizedGradient(PyLayer):
    """Lets values through; puts their gradient on a grid before both products of backward read it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, quantizer: Quantizer) -> Tensor:
        ctx.quantizer = quantizer
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        integers, scale = ctx.quantizer.integers(gradient)
        return integers * scale


@dataclass(frozen=True)
class QuantizedProducts:
    """The names of the products that were quantized, and why known attention layers were left alone."""

    names: tuple[str, ...] = ()
    left_alone: tuple[tuple[str, str], ...] = ()


def quantize_products(model: nn.Layer, settings: ActivationMatmul) -> QuantizedProducts:
    """Quantize the `Matmul` layers of a model and the products of its known attention layers, in place."""
    left_alone = []
    for name, layer in list(model.named_sublayers()):
        known = KNOWN_ATTENTION.get((type(layer).__module__, type(layer).__name__))
        if known is not None and (why := _replace_forward(layer, known)):
            left_alone.append((name, why))
    products = {name: layer for name, layer in model.named_sublayers() if type(layer) is Matmul}
    if not products:
        reasons = "".join(f"\n  {name}: {why}" for name, why in left_alone)
        raise LowbitError(
            f"the recipe has matmul, but {type(model).__name__} has no product of two activations that "
            f"lowbit knows: use lowbit.nn.Matmul() layers in its forward, or leave matmul out{reasons}"
        )
    for name, layer in products.items():
        for side in SIDES:
            quantizer = Quantizer(
                settings.operand_spec(), _LAYOUT, "input", shape=[1] * 4, name=f"{name}.{side}"
            )
            setattr(layer, f"{side}_quantizer", quantizer)
        gradient = settings.gradient_spec()
        layer.gradient_quantizer = gradient and Quantizer(
            gradient, _LAYOUT, "gradient", shape=[1] * 4, name=name
        )
        change_class(layer, QuantizedMatmul)
        layer.train() if layer.training else layer.eval()
    return QuantizedProducts(tuple(products), tuple(left_alone))


# ----------------------------------------------------------------------------------------------------------
# Attention layers that lowbit knows by their class.


@dataclass(frozen=True)
class KnownAttention:
    """A forward that computes what the layer's own does, with `qk_product` and `av_product`."""

    forward: Callable[..., Tensor]
    example: Callable[[nn.Layer], list[int]]  # the shape of an input to try it on


def _heads(layer: nn.Layer, x: Tensor) -> list[Tensor]:
    """Queries, keys and values, each [images, heads, tokens, width]."""
    tokens, width = x.shape[1:]
    parts = layer.qkv(x).reshape([-1, tokens, 3, layer.num_heads, width // layer.num_heads])
    return paddle.unbind(parts.transpose([2, 0, 3, 1, 4]), 0)


def _projected(layer: nn.Layer, mixed: Tensor, tokens: int, width: int) -> Tensor:
    joined = mixed.transpose([0, 2, 1, 3]).reshape([-1, tokens, width])
    return layer.proj_drop(layer.proj(joined))


def _vit_forward(self: nn.Layer, x: Tensor) -> Tensor:
    query, key, value = _heads(self, x)
    scores = self.qk_product(query, key.transpose([0, 1, 3, 2])) * self.scale
    weights = self.attn_drop(F.softmax(scores, axis=-1))
    return _projected(self, self.av_product(weights, value), x.shape[1], x.shape[2])


def _swin_forward(self: nn.Layer, x: Tensor, mask: Tensor | None = None) -> Tensor:
    query, key, value = _heads(self, x)
    scores = self.qk_product(query * self.scale, key.transpose([0, 1, 3, 2]))
    scores = scores + self.get_relative_position_bias()
    if mask is not None:  # one for each window of an image
        windows, tokens = mask.shape[0], x.shape[1]
        scores = scores.reshape([-1, windows, self.num_heads, tokens, tokens]) + mask.unsqueeze(1).unsqueeze(
            0
        )
        scores = scores.reshape([-1, self.num_heads, tokens, tokens])
    weights = self.attn_drop(F.softmax(scores, axis=-1))
    return _projected(self, self.av_product(weights, value), x.shape[1], x.shape[2])


_PPCLS = "ppcls.arch.backbone"
KNOWN_ATTENTION: dict[tuple[str, str], KnownAttention] = {
    (f"{_PPCLS}.model_zoo.vision_transformer", "Attention"): KnownAttention(
        _vit_forward, lambda layer: [2, 5, layer.qkv.weight.shape[0]]
    ),
    (f"{_PPCLS}.legendary_models.swin_transformer", "WindowAttention"): KnownAttention(
        _swin_forward, lambda layer: [2, layer.window_size[0] * layer.window_size[1], layer.dim]
    ),
}


def _replace_forward(layer: nn.Layer, known: KnownAttention) -> str:
    """Make the layer compute with `Matmul` layers; if it cannot, returns the reason and changes nothing."""
    if layer._forward_pre_hooks or layer._forward_post_hooks:
        return "it has hooks"
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal(known.example(layer), dtype=np.float32))
    kind = type(layer)
    layer.qk_product, layer.av_product = Matmul(), Matmul()
    try:
        with eval_mode(layer):
            own = kind.forward(layer, x).numpy()
            ours = known.forward(layer, x).numpy()
        same = own.shape == ours.shape and np.abs(own - ours).max() <= _TOLERANCE * np.abs(own).max()
        why = "" if same else "its forward computes something else than the class that lowbit knows"
    except Exception as error:  # a class of that name in another version may be anything
        why = f"its forward could not be tried ({type(error).__name__})"
    if why:
        del layer.qk_product, layer.av_product
        return why
    change_class(layer, _with_forward(kind, known))
    return ""


@cache
def _with_forward(kind: type[nn.Layer], known: KnownAttention) -> type[nn.Layer]:
    return type(kind.__name__, (kind,), {"forward": known.forward, "__module__": kind.__module__})
