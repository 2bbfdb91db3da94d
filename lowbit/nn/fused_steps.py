"""Fused steps, of which fused blocks are made: convolution, batch norm, residual sum and activation as one.

Each step checks its layers when it runs and calls them one by one where it cannot run as one: hooks on a
layer, another batch norm, an activation other than ReLU, ReLU6 and hard swish, evaluation, mixed precision,
GPUs, export.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from paddle import Tensor, nn

from lowbit.accel.conv_norm import ConvNormNode, Products
from lowbit.accel.convolutions import FloatProducts, conv2d_is_replaced
from lowbit.accel.fused_norm import NormPass, is_plain
from lowbit.accel.norm_ops import fused_batch_norm, max_pool_of, norm_pass
from lowbit.kernels.norm import Activation
from lowbit.nn.linear_ops import geometry_of
from lowbit.nn.plain_layers import (
    ACTIVATIONS,
    activation_kind,
    has_hooks,
    is_norm,
    is_plain_conv,
    is_plain_norm,
)
from lowbit.nn.qat_steps import qat_chain
from lowbit.nn.qt_autograd import Operands, QTProducts
from lowbit.nn.quant_layers import QuantizedConv2D
from lowbit.numerics.exact import as_float32
from lowbit.numerics.fused import new_tensor


def norm_act(
    norm: nn.Layer,
    x: Tensor,
    activation: nn.Layer | Callable[[Tensor], Tensor] | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """`activation(norm(x) + residual)`, in one pass where that is possible, else layer by layer.

    >>> norm_act(nn.BatchNorm2D(2), paddle.ones([1, 2, 3, 3]), nn.ReLU()).shape
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

    >>> conv_norm_act(nn.Conv2D(1, 2, 3), nn.BatchNorm2D(2), paddle.ones([1, 1, 5, 5]), nn.ReLU()).shape
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
    if not (is_plain_conv(conv) and isinstance(x, Tensor) and is_plain(x)):
        return None
    if type(conv) is QuantizedConv2D and conv.plan.is_straight_through:
        if pool is not None or residual is not None:
            return None
        found = qat_chain([conv, norm] if activation is None else [conv, norm, activation], x)
        return None if found is None else (found[0], None)
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


def _node(
    x: Tensor,
    weight: Tensor,
    norm: nn.Layer,
    residual: Tensor | None,
    products: Products,
    norm_of_batch: NormPass,
) -> Tensor:
    inputs = (x, weight, norm.weight, norm.bias, residual)
    return ConvNormNode.apply(*inputs, products, norm_of_batch)


def with_residual(modules: Sequence[nn.Layer], x: Tensor, residual: Tensor) -> Tensor:
    """One module after the other, `+ residual`; a convolution and a batch norm at the end with the sum."""
    layers = _flat(modules)
    if len(layers) < 2 or not is_plain_norm(layers[-1]):
        return run_layers(layers, x) + residual
    *first, last, norm = layers
    return conv_norm_act(last, norm, run_layers(first, x), None, residual)


def run_modules(modules: Sequence[nn.Layer], x: Tensor) -> Tensor:
    """One module after the other; the members of Sequentials with what can be fused, also across them."""
    return run_layers(_flat(modules), x)


def _flat(modules: Sequence[nn.Layer]) -> list[nn.Layer]:
    """The modules, with the members of those Sequentials that only call them one after the other."""
    layers: list[nn.Layer] = []
    for module in modules:
        own = getattr(type(module), "_plain", type(module)).forward is nn.Sequential.forward
        if own and not has_hooks(module) and "forward" not in vars(module):
            layers += _flat(list(module._sub_layers.values()))
        else:
            layers.append(module)
    return layers


def run_layers(layers: list[nn.Layer], x: Tensor) -> Tensor:
    """One after the other, with what can be fused."""
    followed, place = norms_before_activations(layers), 0
    while place < len(layers):
        layer, after = layers[place], layers[place + 1 : place + 3]
        if type(layer) is QuantizedConv2D and layer.plan.is_straight_through:
            found = qat_chain(layers[place:], x)
            x, done = (layer(x), 1) if found is None else found
        elif place in followed:
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
    return {at for at, (norm, act) in pairs if is_norm(norm) and type(act) in ACTIVATIONS}
