"""Fused steps, of which fused blocks are made: convolution, batch norm, residual sum and activation as one.

Each step checks its layers when it runs and calls them one by one where it cannot run as one: hooks on a
layer, another batch norm, an activation other than ReLU, ReLU6 and hard swish, evaluation, mixed precision,
GPUs, export.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import paddle.nn.functional as F
from paddle import Tensor, nn

from lowbit.accel.conv_norm import ConvNormNode, Products
from lowbit.accel.convolutions import FloatProducts, conv2d_is_replaced
from lowbit.accel.fused_norm import NormPass, is_plain
from lowbit.accel.norm_ops import fused_batch_norm, max_pool_of, norm_pass
from lowbit.kernels.norm import Activation
from lowbit.nn.edge_quantizers import only_edge, quantize_edge
from lowbit.nn.int_forward import may_run_in_integers, qat_products
from lowbit.nn.linear_ops import geometry_of
from lowbit.nn.qt_autograd import Operands, QTProducts
from lowbit.nn.quant_layers import QuantizedConv2D
from lowbit.numerics.exact import as_float32
from lowbit.numerics.fused import new_tensor
from lowbit.numerics.observed import note_largest

_ACTIVATIONS = {
    nn.ReLU: Activation.RELU,
    nn.ReLU6: Activation.RELU6,
    nn.Hardswish: Activation.HARDSWISH,
}
_FUNCTIONS = {F.relu: Activation.RELU, F.relu6: Activation.RELU6, F.hardswish: Activation.HARDSWISH}


def activation_kind(
    activation: nn.Layer | Callable[[Tensor], Tensor] | None, *, may_have_edge: bool = False
) -> Activation | None:
    """What the kernels call it; None for one that they do not have, or with hooks other than an edge's."""
    if activation is None:
        return Activation.NONE
    if not isinstance(activation, nn.Layer):
        return _FUNCTIONS.get(activation)
    if (has_hooks(activation) and not may_have_edge) or "forward" in vars(activation):
        return None
    return _ACTIVATIONS.get(type(activation))


def is_norm(layer: nn.Layer | None) -> bool:
    """Whether the layer is a batch norm that the kernels compute; subclasses are not."""
    return type(layer) is nn.BatchNorm2D


def is_plain_norm(layer: nn.Layer) -> bool:
    """Whether it is such a batch norm, and nothing but its own code runs when it is called."""
    return is_norm(layer) and not has_hooks(layer) and "forward" not in vars(layer)


def has_hooks(layer: nn.Layer) -> bool:
    """Whether a call of the layer also calls hooks."""
    return bool(layer._forward_pre_hooks or layer._forward_post_hooks)


def norm_act(
    norm: nn.Layer,
    x: Tensor,
    activation: nn.Layer | Callable[[Tensor], Tensor] | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """`activation(norm(x) + residual)`, in one pass where that is possible, else layer by layer.

    >>> norm_act(nn.BatchNorm2D(2), paddle.ones([1, 2, 3, 3]), F.relu).shape
    paddle.Size([1, 2, 3, 3])
    """
    kind = activation_kind(activation)
    if kind is not None and is_plain_norm(norm):
        y = fused_batch_norm(norm, x, residual, activation=kind)
        if y is not None:
            return y
    y = norm(x)
    y = y if residual is None else y + residual
    return y if activation is None else activation(y)


def conv_norm_act(
    conv: nn.Layer,
    norm: nn.Layer,
    x: Tensor,
    activation: nn.Layer | Callable[[Tensor], Tensor] | None = None,
    residual: Tensor | None = None,
    pool: nn.Layer | None = None,
    *,
    ranges: Tensor | None = None,
) -> Tensor:
    """`pool(activation(norm(conv(x)) + residual))` as one autograd node where that is possible.

    `ranges` are those of x that `conv_norm_act_ranges` gave with it.

    >>> conv_norm_act(nn.Conv2D(1, 2, 3), nn.BatchNorm2D(2), paddle.ones([1, 1, 5, 5]), F.relu).shape
    paddle.Size([1, 2, 3, 3])
    """
    found = _as_one_node(conv, norm, x, activation, residual, pool, ranges)
    if found is not None:
        return found[0]
    if pool is not None:
        return pool(conv_norm_act(conv, norm, x, activation, residual))
    return norm_act(norm, conv(x), activation, residual)


def conv_norm_act_ranges(
    conv: nn.Layer,
    norm: nn.Layer,
    x: Tensor,
    activation: nn.Layer | Callable[[Tensor], Tensor] | None = None,
    *,
    ranges: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`conv_norm_act`, and max |y| of every channel of every image if the kernel tells, else None.

    For a y that goes to the next step of the same block and to nobody else: who could change it in place
    would make the ranges wrong.
    """
    found = _as_one_node(conv, norm, x, activation, None, None, ranges, wants_ranges=True)
    return (norm_act(norm, conv(x), activation), None) if found is None else found


def _as_one_node(
    conv: nn.Layer,
    norm: nn.Layer,
    x: Tensor,
    activation: nn.Layer | Callable[[Tensor], Tensor] | None,
    residual: Tensor | None,
    pool: nn.Layer | None,
    ranges: Tensor | None = None,
    *,
    wants_ranges: bool = False,
) -> tuple[Tensor, Tensor | None] | None:
    """y and, if wanted, its ranges; None where the layers must run one by one."""
    if not (_is_plain_conv(conv) and isinstance(x, Tensor) and is_plain(x)):
        return None
    if type(conv) is QuantizedConv2D and conv.plan.is_straight_through:
        if pool is not None or residual is not None:
            return None
        y = _qat_node(conv, norm, x, activation)
        return None if y is None else (y, None)
    in_low_precision = type(conv) is QuantizedConv2D
    kind = activation_kind(activation)
    if kind is None or not is_plain_norm(norm) or not (in_low_precision or pool is not None):
        return None
    geometry = geometry_of(conv, x.shape)
    if geometry is None or not (in_low_precision or conv2d_is_replaced(geometry)):
        return None
    windows = None
    if pool is not None:
        is_known = type(pool) is nn.MaxPool2D and not has_hooks(pool) and "forward" not in vars(pool)
        windows = max_pool_of(pool, geometry.output) if is_known and kind is Activation.RELU else None
        if windows is None or residual is not None:
            return None
    norm_of_batch = norm_pass(norm, geometry.output, residual, activation=kind)
    if norm_of_batch is None:
        return None
    norm_of_batch.pool = windows
    if wants_ranges and windows is None:
        norm_of_batch.largest = new_tensor([*geometry.output[:2], 1, 1])
    weight = conv.weight
    if in_low_precision:
        given, x = x, as_float32(conv.input_quantizer.trained(x))
        ranges = ranges if x is given else None
        weight = conv.weight_quantizer.trained(weight)
    learning = (not x.stop_gradient, not weight.stop_gradient)
    if in_low_precision:
        products: Products = QTProducts(conv.linear_op(x), Operands(conv), learning, ranges)
    else:
        products = FloatProducts(geometry, learning, computes_again=True)
    return _node(x, weight, norm, residual, products, norm_of_batch), norm_of_batch.largest


def _is_plain_conv(conv: nn.Layer) -> bool:
    """Whether it is a convolution of training, as lowbit or Paddle wrote it, of which nothing is added."""
    if type(conv) not in (QuantizedConv2D, nn.Conv2D) or has_hooks(conv):
        return False
    if "forward" in vars(conv) or "effective_weight_and_bias" in vars(conv):
        return False
    layout = (conv._padding_mode, conv._data_format)
    return conv.bias is None and conv.training and layout == ("zeros", "NCHW")


def _qat_node(
    conv: QuantizedConv2D,
    norm: nn.Layer,
    x: Tensor,
    activation: nn.Layer | Callable[[Tensor], Tensor] | None,
) -> Tensor | None:
    """The same of QAT, for a batch norm whose output is quantized; that of the activation may be, too.

    Without a quantizer there is nothing to gain: the convolution's output would live longer in backward.
    """
    edge = only_edge(norm) if is_norm(norm) and "forward" not in vars(norm) else None
    moving = None if edge is None else edge.moving_scale()
    if moving is None or not may_run_in_integers(conv, x):
        return None
    has_edge = isinstance(activation, nn.Layer) and only_edge(activation) is not None
    kind = activation_kind(activation, may_have_edge=has_edge)
    geometry = None if kind is None else geometry_of(conv, x.shape)
    if geometry is None:
        return None
    norm_of_batch = norm_pass(norm, geometry.output, activation=kind, quantizer=moving)
    products = None if norm_of_batch is None else qat_products(conv, x, conv.weight)
    if products is None:
        return None
    if kind is Activation.NONE or not has_edge:
        return _node(x, conv.weight, norm, None, products, norm_of_batch)
    norm_of_batch.largest = new_tensor(geometry.output[:2])
    y = _node(x, conv.weight, norm, None, products, norm_of_batch)
    note_largest(y, norm_of_batch.largest)
    return quantize_edge(activation, y)


def _node(
    x: Tensor,
    weight: Tensor,
    norm: nn.Layer,
    residual: Tensor | None,
    products: Products,
    norm_of_batch: NormPass,
) -> Tensor:
    quantizer = norm_of_batch.quantizer
    alphas = products.alpha, None if quantizer is None else quantizer.alpha
    inputs = (x, weight, norm.weight, norm.bias, residual, *alphas)
    return ConvNormNode.apply(*inputs, products, norm_of_batch)


def with_residual(layers: nn.Layer, x: Tensor, residual: Tensor) -> Tensor:
    """`layers(x) + residual`; the sum is fused with a convolution and a batch norm at the end."""
    members = _members(layers)
    if members is None or len(members) < 2 or not is_plain_norm(members[-1]):
        return run_sequential(layers, x) + residual
    *first, last, norm = members
    return conv_norm_act(last, norm, run_layers(first, x), None, residual)


def run_sequential(layers: nn.Layer, x: Tensor) -> Tensor:
    """`layers(x)`; the members of a Sequential with what can be fused."""
    members = _members(layers)
    return layers(x) if members is None else run_layers(members, x)


def _members(layers: nn.Layer) -> list[nn.Layer] | None:
    """Those of a Sequential that only calls them one after the other; None for others."""
    own = getattr(type(layers), "_plain", type(layers)).forward is nn.Sequential.forward
    if not own or has_hooks(layers) or "forward" in vars(layers):
        return None
    return list(layers._sub_layers.values())


def run_layers(layers: list[nn.Layer], x: Tensor) -> Tensor:
    followed, place = norms_before_activations(layers), 0
    while place < len(layers):
        layer, after = layers[place], layers[place + 1 : place + 3]
        if place in followed:
            x, done = norm_act(layer, x, after[0]), 2
        elif place + 1 in followed:
            x, done = conv_norm_act(layer, after[0], x, after[1]), 3
        elif after and is_norm(after[0]):
            x, done = conv_norm_act(layer, after[0], x), 2
        else:
            x, done = layer(x), 1
        place += done
    return x


def norms_before_activations(layers: list[nn.Layer]) -> set[int]:
    """The places of batch norms that an activation follows."""
    pairs = enumerate(pairwise(layers))
    return {at for at, (norm, act) in pairs if is_norm(norm) and type(act) in _ACTIVATIONS}
