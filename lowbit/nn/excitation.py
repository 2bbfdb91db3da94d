"""Squeeze-and-excitation of QAT as one autograd node: its tensors are small, nodes and calls take the time.

The results are those of the layers one after the other, in the same bits; gradients of alphas, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.autograd import PyLayer
from paddle.vision.models.mobilenetv3 import SqueezeExcitation

from lowbit.accel.fused_norm import is_plain
from lowbit.accel.norm_ops import gates_are_replaced
from lowbit.errors import LowbitError
from lowbit.kernels.excitation import Excitation, GateLayer
from lowbit.kernels.gemm import Geometry
from lowbit.nn.edge_quantizers import only_edge
from lowbit.nn.float_gradients import in_floats
from lowbit.nn.int_forward import may_run_in_integers, weight_operand
from lowbit.nn.linear_ops import Convolution, geometry_of
from lowbit.nn.plain_layers import function_digest, has_hooks
from lowbit.nn.qtensor import QTensor
from lowbit.nn.quant_layers import QuantizedConv2D
from lowbit.nn.quantizer import Quantizer
from lowbit.numerics import fused
from lowbit.numerics.fused import new_tensor
from lowbit.numerics.observed import MovingScale, fits

_SCALE = "5fc6f0a396d1"  # digest of the source of `SqueezeExcitation._scale` that this file was written for


def quantized_excitation(block: SqueezeExcitation, x: Tensor) -> Tensor | None:
    """`block._scale(x) * x` in training; None where the layers have to be called."""
    planned = _plan(block, x)
    if planned is None:
        return None
    if not planned.kernel.forward(x.data_ptr(), planned.y.data_ptr()):
        return None  # a value is NaN
    return _ExcitationNode.apply(x, planned, *(one for one in planned.parameters if one is not None))


@dataclass(frozen=True, eq=False)  # no tuple: Paddle takes the tensors of one for a PyLayer's inputs
class _Planned:
    """One call: the kernel, its result, the layers' geometries, what may learn, and what the kernel reads."""

    kernel: Excitation
    y: Tensor
    geometries: tuple[Geometry, Geometry]
    # of both layers, then PACT's alphas of the four quantizers, in order
    weights: tuple[Tensor, Tensor]
    biases: tuple[Tensor | None, Tensor | None]
    alphas: tuple[Tensor | None, ...]
    memory: tuple[Any, ...]

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        return (*self.weights, *self.biases, *self.alphas)


def _plan(block: SqueezeExcitation, x: Tensor) -> _Planned | None:
    if not (isinstance(x, Tensor) and is_plain(x) and x.ndim == 4 and fits(x) and paddle.is_grad_enabled()):
        return None
    if not (gates_are_replaced() and _is_known(block)):
        return None
    images, channels, height, width = x.shape
    layers, hidden = (block.fc1, block.fc2), block.fc1.weight.shape[0]
    shapes = [images, channels, 1, 1], [images, hidden, 1, 1]
    geometries = [_geometry(layer, shape, x) for layer, shape in zip(layers, shapes, strict=True)]
    if None in geometries or block.fc2.weight.shape[0] != channels:
        return None
    quantizers, operands = _quantizers(block), [_integers(layer) for layer in layers]
    if quantizers is None or operands[0] is None or operands[1] is None:
        return None
    scales = [None if one is None else new_tensor([1]) for one in quantizers]
    observers = [
        None if one is None else one.for_kernel(scale) for one, scale in zip(quantizers, scales, strict=True)
    ]
    floats, bytes_ = Excitation.state_sizes(images, channels, hidden)
    state = new_tensor([floats]), new_tensor([bytes_], "uint8")
    gate_layers = [
        GateLayer(
            observer,
            operand.data.data_ptr(),
            operand.scale.data_ptr(),
            None if layer.bias is None else layer.bias.data_ptr(),
            operand.highest,
        )
        for observer, operand, layer in zip(observers[:2], operands, layers, strict=True)
    ]
    sizes = images, channels, height * width, hidden
    kernel = Excitation(sizes, *gate_layers, *observers[2:], *(one.data_ptr() for one in state))
    return _Planned(
        kernel,
        new_tensor(x.shape),
        tuple(geometries),
        tuple(layer.weight for layer in layers),
        tuple(layer.bias for layer in layers),
        tuple(None if one is None else one.alpha for one in quantizers),
        (state, scales, operands),
    )


def _quantizers(block: SqueezeExcitation) -> list[MovingScale | None] | None:
    """Of both layers' inputs, of the hard sigmoid's input and of its output; these two may have none."""
    found: list[MovingScale | None] = []
    for layer in (block.fc1, block.fc2):
        own = layer.input_quantizer
        found.append(own.moving_scale() if type(own) is Quantizer else None)
        if found[-1] is None:
            return None
    for owner in (block.fc2, block.scale_activation):
        edge = only_edge(owner) if has_hooks(owner) else None
        found.append(None if edge is None else edge.moving_scale())
        if found[-1] is None and has_hooks(owner):
            return None
    return found


def _is_known(block: SqueezeExcitation) -> bool:
    """Whether it runs the code that this file stands for, and nothing else."""
    if (
        not _scale_is_unchanged()
        or "_scale" in vars(block)
        or type(block)._scale is not SqueezeExcitation._scale
    ):
        return False
    pool, activation, gate = block.avgpool, block.activation, block.scale_activation
    kinds = (type(pool), type(activation), type(gate), type(block.fc1), type(block.fc2))
    if kinds != (nn.AdaptiveAvgPool2D, nn.ReLU, nn.Hardsigmoid, QuantizedConv2D, QuantizedConv2D):
        return False
    if any(has_hooks(layer) for layer in (pool, activation, block.fc1)):
        return False
    if any("forward" in vars(layer) for layer in (pool, activation, gate, block.fc1, block.fc2)):
        return False
    return pool._output_size == 1 and pool._data_format == "NCHW"


@cache
def _scale_is_unchanged() -> bool:
    return function_digest(SqueezeExcitation._scale) == _SCALE


def _geometry(layer: QuantizedConv2D, shape: list[int], x: Tensor) -> Geometry | None:
    """That of a plain 1x1 convolution in integers."""
    if not layer.plan.is_straight_through or "effective_weight_and_bias" in vars(layer):
        return None
    if (layer._padding_mode, layer._data_format) != ("zeros", "NCHW") or not may_run_in_integers(layer, x):
        return None
    if layer.bias is not None and not fits(layer.bias):
        return None
    geometry = geometry_of(layer, shape)
    if geometry is None or geometry.groups != 1 or geometry.kernel != (1, 1):
        return None
    return geometry if geometry.stride == (1, 1) and not any(geometry.padding) else None


def _integers(layer: QuantizedConv2D) -> QTensor | None:
    """Those of the weight on a symmetric grid, where nothing is clipped, with a scale per output."""
    made = weight_operand(layer.weight_quantizer, layer.weight)
    if made is None or made[1] is not None:
        return None
    operand = made[0]
    return operand if operand.scale.shape == [layer.weight.shape[0], 1, 1, 1] else None


class _ExcitationNode(PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor, planned: _Planned, *_parameters: Tensor) -> Tensor:
        ctx.planned = planned
        fused.save_for_backward(ctx, x, *planned.weights)
        return planned.y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if paddle.is_grad_enabled():
            raise LowbitError(
                "second-order gradients are not supported for squeeze-and-excitation in QAT: "
                "use the network without lowbit.fuse, or without accelerate()"
            )
        planned, (x, *_) = ctx.planned, fused.saved_unchanged(ctx)
        kernel, (first, second), dy = planned.kernel, planned.geometries, dy.contiguous()
        wanted = [
            None if one is None or one.stop_gradient else new_tensor(one.shape) for one in planned.parameters
        ]
        dbiases, dalphas = wanted[2:4], [None if one is None else one.data_ptr() for one in wanted[4:]]
        at_biases = [None if one is None else one.data_ptr() for one in dbiases]
        dx, doutput, *operands = (new_tensor(shape) for shape in (x.shape, second.output, *_shapes(second)))
        kernel.backward_gate(
            *(one.data_ptr() for one in (x, dy, dx, doutput, *operands)), at_biases[1], *dalphas[2:]
        )
        dhidden, dweight2 = _gradients(second, doutput, *operands)
        operands = [new_tensor(shape) for shape in _shapes(first)]
        kernel.backward_hidden(*(one.data_ptr() for one in (dhidden, *operands)), at_biases[0], dalphas[1])
        dmean, dweight1 = _gradients(first, dhidden, *operands)
        kernel.backward_mean(dmean.data_ptr(), dx.data_ptr(), dalphas[0])
        found = (dweight1, dweight2, *wanted[2:])
        pairs = zip(found, wanted, planned.parameters, strict=True)
        gradients = [
            None if wants is None else gradient for gradient, wants, given in pairs if given is not None
        ]
        return (None if x.stop_gradient else dx, *gradients)


def _shapes(geometry: Geometry) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the weight and of the input."""
    return (geometry.outputs, geometry.input[1], 1, 1), geometry.input


def _gradients(geometry: Geometry, dy: Tensor, weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of the input and of the weight."""
    products = in_floats(Convolution(geometry), dy)
    return products.grad_input(dy, weight), products.grad_weight(dy, x)
