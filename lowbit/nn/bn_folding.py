"""Folding batch norm into the layer before it: which pairs, at export, and during training."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.accel.op_overrides import change_class
from lowbit.errors import LowbitError
from lowbit.nn.eval_mode import cause, eval_mode
from lowbit.nn.quant_layers import is_quantized
from lowbit.nn.scale_state import of_first_rank
from lowbit.numerics.exact import divide, multiply

BATCH_NORM = nn.layer.norm._BatchNormBase  # of BatchNorm1D, 2D, 3D and SyncBatchNorm
_LAYERS = nn.Conv2D | nn.Conv2DTranspose | nn.Linear
# Of the largest answer: two runs of the same model on a GPU may differ in last bits.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Folded:
    """The pairs (layer, batch norm), by name, and the batch norms that have none, with the reason."""

    pairs: list[tuple[str, str]] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Call:
    """One call of a layer during the trace; the tensors are kept alive so that their ids stay unique."""

    layer: nn.Layer
    input: Any
    output: Any


def find_foldable(model: nn.Layer, *inputs: Tensor, quantized: bool = False) -> Folded:
    """The batch norms that can be folded into the layer before them, and the others with the reason.

    `quantized` counts quantized layers, too.

    The model, which stays as it is, is run on `inputs`. The proof does not depend on the values in it: what
    a layer gives is hidden from everyone but its batch norm, and the answers must stay the same.

    >>> net = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1D(2), nn.ReLU(), nn.BatchNorm1D(2))
    >>> find_foldable(net, paddle.ones([3, 4])).pairs
    [('0', '1')]
    """
    names = {id(layer): name for name, layer in model.named_sublayers()}
    found = Folded()
    candidates = []
    with eval_mode(model):
        calls, answers = _trace(model, inputs)
        for name, layer in model.named_sublayers():
            if isinstance(layer, nn.BatchNorm):
                found.left_alone[name] = "it is the old paddle.nn.BatchNorm: use BatchNorm2D in the model"
            if isinstance(layer, BATCH_NORM):
                source, why = _source(layer, calls, model, quantized=quantized)
                if source is None:
                    found.left_alone[name] = why
                else:
                    candidates.append((source, layer))
        proved = candidates
        if not _nobody_else_reads(candidates, model, inputs, answers):
            proved = [pair for pair in candidates if _nobody_else_reads([pair], model, inputs, answers)]
    for source, norm in candidates:
        if (source, norm) in proved:
            found.pairs.append((names[id(source)], names[id(norm)]))
        else:
            found.left_alone[names[id(norm)]] = f"the output of {names[id(source)]} is used elsewhere, too"
    return found


def _trace(model: nn.Layer, inputs: tuple[Tensor, ...]) -> tuple[list[_Call], list[np.ndarray]]:
    calls: list[_Call] = []
    hooks = [
        layer.register_forward_post_hook(lambda layer, given, out: calls.append(_Call(layer, given[0], out)))
        for layer in model.sublayers()
        if isinstance(layer, BATCH_NORM | _LAYERS)
    ]
    try:
        answers = _answers(model, inputs)
    except Exception as error:  # the user's own forward may raise anything
        shapes = ", ".join(str(list(given.shape)) for given in inputs)
        raise LowbitError(
            f"{type(model).__name__} does not run on the example inputs {shapes}, from which its batch norms "
            f"are to be found: {cause(error)}. Give inputs that it takes (in a config: Global.image_shape)"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not answers or not all(np.isfinite(answer).all() for answer in answers):
        raise LowbitError(
            f"the answers of {type(model).__name__} to the example inputs are "
            f"{'NaN or Inf' if answers else 'no tensors'}: what its batch norms follow cannot be proved"
        )
    return calls, answers


def _answers(model: nn.Layer, inputs: tuple[Tensor, ...]) -> list[np.ndarray]:
    random_state = paddle.get_rng_state()
    flat = paddle.utils.flatten(model(*inputs))
    paddle.set_rng_state(random_state)  # a model that draws numbers draws the same in every run
    return [out.astype("float32").numpy() for out in flat if isinstance(out, Tensor)]


def _source(
    norm: nn.Layer, calls: list[_Call], model: nn.Layer, *, quantized: bool
) -> tuple[nn.Layer | None, str]:
    """The layer whose output the batch norm takes, or why it cannot be folded into one."""
    own = [call for call in calls if call.layer is norm]
    if len(own) != 1:
        return None, f"it is called {len(own)} times in a forward pass"
    if norm._use_global_stats is False:
        return None, "it uses the statistics of the batch in evaluation, too (use_global_stats=False)"
    sources = [call for call in calls if call.output is own[0].input]
    if not sources:
        return None, "its input is not the output of a Conv2D, Conv2DTranspose or Linear layer"
    source = sources[-1].layer
    if is_quantized(source) and not quantized:
        return None, "the layer before it is quantized already: fold before prepare"
    if isinstance(source, BATCH_NORM):
        return None, "its input is the output of another batch norm"
    if not (has_paddles_forward(source) and has_paddles_forward(norm)):
        return None, "it, or the layer before it, has its own forward"
    if source._forward_pre_hooks or source._forward_post_hooks or norm._forward_pre_hooks:
        return None, "hooks stand between it and the layer before it, or change that layer"
    if sum(call.layer is source for call in calls) != 1:
        return None, "the layer before it is called several times in a forward pass"
    parameters = [parameter for layer in model.sublayers() for parameter in _own(layer)]
    if sum(parameter is source.weight for parameter in parameters) != 1:
        return None, "the layer before it shares its weight"
    features_last = isinstance(source, nn.Linear) or source._data_format.endswith("C")
    if own[0].input.ndim > 2 and features_last != norm._data_format.endswith("C"):
        return None, "it normalizes another axis than the layer's outputs"
    return source, ""


def has_paddles_forward(layer: nn.Layer) -> bool:
    """Whether its forward is that of its base class in Paddle (or of lowbit's own layers)."""
    return type(layer).forward.__module__.startswith(("paddle.", "lowbit."))


def _own(layer: nn.Layer) -> list[Tensor]:
    return list(layer.parameters(include_sublayers=False))


def _nobody_else_reads(
    pairs: list[tuple], model: nn.Layer, inputs: tuple[Tensor, ...], expected: list[np.ndarray]
) -> bool:
    """Whether the outputs stay the same if all readers but the batch norms get NaN."""
    hooks = []
    for source, norm in pairs:
        hidden: list[Tensor] = []

        def hide(layer: nn.Layer, given: Any, out: Tensor, hidden: list[Tensor] = hidden) -> Tensor:
            hidden.append(out)
            return paddle.full_like(out, float("nan"))

        def show(norm: nn.Layer, given: Any, hidden: list[Tensor] = hidden) -> Tensor:
            return hidden[0]

        hooks += [source.register_forward_post_hook(hide), norm.register_forward_pre_hook(show)]
    try:
        answers = _answers(model, inputs)
    except Exception:  # a forward that computes an index from NaN, say: somebody else reads it
        return False
    finally:
        for hook in hooks:
            hook.remove()
    return all(
        np.allclose(found, answer, rtol=0, atol=_TOLERANCE * max(float(np.abs(answer).max(initial=0)), 1e-30))
        for found, answer in zip(answers, expected, strict=True)
    )


# Permanent folding, where it provably changes no output.


def fold_batch_norm(model: nn.Layer, *inputs: Tensor) -> Folded:
    """Fold, in place, every batch norm that is the only reader of a layer's output into that layer.

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


# Folding when a network is calibrated: the layer does the batch norm's work, and the batch norm stays in its
# place and changes nothing. Names stay, too, so that a checkpoint of it is like that of any other network.


ABSORBED = "_lowbit_absorbed_norm"  # on a layer: its Absorbed


@dataclass(frozen=True, eq=False)
class Absorbed:
    """The batch norm that calibration folds into a layer; a sublayer of another module."""

    norm: nn.Layer


def fold_at_calibration(layer: nn.Layer, norm: nn.Layer) -> None:
    """Let `absorb_batch_norms` fold the batch norm into the layer, which has a bias.

    From now on the batch norm keeps its statistics, also in training: a batch's own would undo the folding.
    """
    setattr(layer, ABSORBED, Absorbed(norm))
    norm._use_global_stats = True


def absorb_batch_norms(model: nn.Layer) -> int:
    """Fold, in place, what `fold_at_calibration` has named; how many layers. A second time changes nothing.

    The batch norm multiplies by exactly 1 afterwards and adds 0, so that the network computes the very
    numbers of the exported file, where there is no batch norm.
    """
    found = 0
    for layer in model.sublayers(include_self=True):
        absorbed = getattr(layer, ABSORBED, None)
        if absorbed is None:
            continue
        norm = absorbed.norm
        with paddle.no_grad():
            weight, bias = folded_weight_and_bias(layer, norm)
            layer.weight.set_value(weight.cast(layer.weight.dtype))
            layer.bias.set_value(bias.cast(layer.bias.dtype))
            for part, value in ((norm._mean, 0.0), (norm.bias, 0.0), (norm.weight, 1.0)):
                if part is not None:
                    part.set_value(paddle.full_like(part, value))
            # In fp32, this and epsilon add up to 1.
            norm._variance.set_value(paddle.full_like(norm._variance, 1.0 - norm._epsilon))
        found += 1
    return found


# Folding while both layers train.
#
# With the gain g = weight / sqrt(running variance + epsilon) of the batch norm, W·g is quantized:
#
# - evaluation: x · Q(W·g) + (batch norm's bias + (bias - running mean)·g), and the batch norm is the
#   identity: one product, which is exported;
# - training: x · (Q(W·g) / g) + bias, which the batch norm normalizes as usual.
#
# In training this is Krishnamoorthi's correction (the running gain is divided out, the batch's own is
# applied, so that the grid does not jump from batch to batch), applied to the weight instead of the output,
# and with the statistics of the quantized product: one convolution, not two. With constant statistics both
# are equal up to floating-point rounding.
#
# g only places the grid, as an observed range does, and gets no gradient there; the gradients of the batch
# norm's weight, bias and statistics are the batch norm's own.


@dataclass(frozen=True, eq=False)
class Pair:
    """A layer and its batch norm, known to both (and a sublayer of neither: names stay)."""

    layer: nn.Layer
    norm: nn.Layer

    @property
    def is_one(self) -> bool:
        """Whether the batch norm is folded now: not if either of them trains, or uses batch statistics."""
        return not (self.layer.training or self.norm.training)


def fold_in_training(layer: nn.Layer, pair: Pair) -> None:
    """Make the quantized layer, in place, quantize its weight with the pair's batch norm folded into it."""
    layer.fold = pair
    change_class(layer, _folded_class(type(layer)))


def folded_weight_and_bias(layer: nn.Layer, norm: nn.Layer) -> tuple[Tensor, Tensor]:
    """The weight and the bias with the batch norm folded in, as in evaluation.

    >>> norm = nn.BatchNorm1D(2)
    >>> norm.weight.set_value(paddle.to_tensor([2.0, 4.0]))
    >>> folded_weight_and_bias(nn.Linear(3, 2), norm)[0].shape
    paddle.Size([3, 2])
    """
    gain = _gain(norm, norm._variance)
    shift = norm._mean.cast("float64") * -1.0
    if layer.bias is not None:
        shift = shift + layer.bias.cast("float64")
    shift = shift * gain
    if norm.bias is not None:
        shift = shift + norm.bias.cast("float64")
    gain = along_weight(layer, gain.cast("float32"))
    return multiply(layer.weight, gain), shift.cast("float32")


def along_weight(layer: nn.Layer, per_output: Tensor) -> Tensor:
    """A number per output channel in the shape in which it is broadcast against the layer's weight."""
    if isinstance(layer, nn.Linear):
        return per_output.reshape([1, -1])
    if isinstance(layer, nn.Conv2D):
        return per_output.reshape([-1, 1, 1, 1])
    # [in, out / groups, …], where the inputs of a group have its outputs only
    inputs, groups = layer._in_channels, layer._groups
    rows = paddle.repeat_interleave(per_output.reshape([groups, -1]), inputs // groups, axis=0)
    return rows.unsqueeze([2, 3])


class _Folded:
    """Mixed into a quantized layer, whose class is `_plain`."""

    _plain: type[nn.Layer]
    fold: Pair
    input_quantizer: Any
    weight_quantizer: Any
    product: Any
    weight: Tensor
    bias: Any
    training: bool

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        geometry = () if output_size is None else (output_size,)
        if self.fold.is_one:
            # Named, since the export of a model rewrites this function and then super() finds no class.
            return self._plain.forward(self, x, *geometry)
        x, weight = self.input_quantizer(x), self._weight_before_batch_norm()
        return self.product(x, weight, self.bias, *geometry)

    def effective_weight_and_bias(self) -> tuple[Tensor, Tensor]:
        """What is multiplied and added in evaluation."""
        return folded_weight_and_bias(self, self.fold.norm)

    def _weight_before_batch_norm(self) -> Tensor:
        variance = self.fold.norm._variance.detach()
        if self.training:
            # Statistics that each process keeps for itself would give each its own grid.
            variance = of_first_rank(variance)
        gain = along_weight(self, _gain(self.fold.norm, variance).cast("float32")).detach()
        quantized = self.weight_quantizer(multiply(self.weight, gain))
        # Nothing can be taken out of a gain of 0; the batch norm hides the channel, and its weight still
        # learns from what it hides. (Not `gain == 0`: Paddle takes numbers below 1e-8 for 0.)
        hidden = ~(paddle.abs(gain) > 0) & ~paddle.isnan(gain)
        shown = divide(quantized, paddle.where(hidden, paddle.ones_like(gain), gain))
        return paddle.where(hidden, self.weight, shown)


def _gain(norm: nn.Layer, variance: Tensor) -> Tensor:
    # In fp64, which mixed precision leaves alone; rounded once, so that every executor has the same bits.
    deviation = paddle.sqrt(variance.cast("float64") + norm._epsilon)
    weight = paddle.ones_like(deviation) if norm.weight is None else norm.weight.cast("float64")
    return weight / deviation


@cache
def _folded_class(kind: type[nn.Layer]) -> type[nn.Layer]:
    return type(f"Folded{kind.__name__}", (_Folded, kind), {"_plain": kind, "__module__": kind.__module__})
