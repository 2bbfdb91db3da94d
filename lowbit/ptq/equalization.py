"""Cross-layer equalization: channels between layers get like ranges, and the network computes the same.

If y = B(relu(A(x))), every channel of A's output can be divided by a factor, and the weights that B
multiplies it with multiplied by the same. B's input, which has one scale for all channels, then loses less to
channels with large values. The same holds for all layers that write into a residual sum and all that read it,
since sums, pools and ReLU give f·y for f·x. ReLU6 does so below 6: a channel that reaches 6 stays as it is,
and no other is enlarged that far. Values beyond 1.25 times the largest that was seen may be cut off there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import paddle
from paddle import Tensor, nn

from lowbit.nn.bn_folding import along_weight, find_foldable
from lowbit.nn.edge_trace import Node, trace_nodes
from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.quant_layers import is_quantized
from lowbit.ptq.learned_rounding import unquantized

_LARGEST = 8.0  # a factor, and its inverse
_TOLERANCE = 1e-5  # of the largest answer
_FEW = 2  # images for the proof, which takes a run for each stream
_CAP = 6.0  # of ReLU6
_MARGIN = 1.25  # other images may have larger values than those seen
# They give f·y for f·x, f > 0, channel by channel.
_HOMOGENEOUS = (
    "input", "output", "relu", "leaky_relu", "prelu", "pool2d", "max_pool2d_with_index", "dropout", "assign",
    "share_data",
)  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """Channels that some layers write, by name, and some read; `capped` if through a ReLU6."""

    writers: tuple[str, ...]
    readers: tuple[str, ...]
    capped: bool = False


def equalize(model: nn.Layer, *inputs: Tensor) -> list[Stream]:
    """Equalize, in place, the channels between quantized layers; what was equalized.

    The streams are read from a trace of the prepared model. Each is proved by running it on some of `inputs`
    in full precision: dividing and multiplying by powers of two must leave the answers as they are. Calibrate
    afterwards.

    equalize(model, images)
    """
    layers = dict(model.named_sublayers())
    quantized = {name for name, layer in layers.items() if is_quantized(layer)}
    few = tuple(x[:_FEW] for x in inputs)
    done = []
    with eval_mode(model), unquantized(model):
        norms = dict(find_foldable(model, *few, quantized=True).pairs)
        streams = find_streams(trace_nodes(model, few, quantized, purpose="equalize"), norms)
        given = _inputs_of_layers(model, inputs, {layers[name] for one in streams for name in one.readers})
        answers = _answers(model, few)
        for stream in streams:
            part = _Part(stream, layers, norms)
            if not part.fits():
                continue
            factors = part.factors([given[id(reader)] for reader in part.readers])
            if _is_proved(part, factors, model, few, answers):
                part.scale(factors)
                done.append(stream)
    return done


def find_streams(nodes: Sequence[Node], norms: Mapping[str, str]) -> list[Stream]:
    """The streams of a traced network; `norms` are the batch norms behind its layers, by name."""
    return [stream for stream in _Streams(nodes, norms).found() if stream.writers and stream.readers]


@dataclass
class _Group:
    """Tensors whose channels have to be scaled alike."""

    values: list[str]
    writers: list[str] = field(default_factory=list)
    readers: list[str] = field(default_factory=list)
    capped: bool = False
    blocked: bool = False  # somebody else reads or makes them

    def take_in(self, other: _Group) -> None:
        self.values += other.values
        self.writers += other.writers
        self.readers += other.readers
        self.capped |= other.capped
        self.blocked |= other.blocked


class _Streams:
    def __init__(self, nodes: Sequence[Node], norms: Mapping[str, str]) -> None:
        self._groups: dict[str, _Group] = {}
        self._made = {value for node in nodes for value in node.outputs}
        used = {value for node in nodes for value in node.inputs}
        calls = Counter(node.name for node in nodes if node.kind == "layer")
        behind_layer: set[str] = set()  # what a layer with a batch norm gives, before it
        for node in nodes:
            first, *others = [self._group(value) for value in (*node.inputs, *node.outputs)]
            if node.kind == "layer" and len(node.inputs) == 1 and calls[node.name] == 1:
                first.readers.append(node.name)
                others[0].writers.append(node.name)
                if node.name in norms:
                    behind_layer.update(node.outputs)
            elif node.kind in _HOMOGENEOUS or (node.kind == "batch_norm" and node.inputs[0] in behind_layer):
                self._merge(node)
                if node.kind in ("input", "output") and node.inputs[0] in behind_layer:
                    behind_layer.update(node.outputs)
            elif node.kind == "relu6":
                self._merge(node).capped = True
            elif node.kind == "add" and len(node.inputs) == 2:
                self._merge(node)
            else:
                for group in (first, *others):
                    group.blocked = True
        for value, group in self._groups.items():
            group.blocked |= value not in used  # the network's answers

    def _group(self, value: str) -> _Group:
        return self._groups.setdefault(value, _Group([value], blocked=value not in self._made))

    def _merge(self, node: Node) -> _Group:
        whole = self._group(node.outputs[0])
        for value in node.inputs:
            group = self._group(value)
            if group is not whole:
                whole.take_in(group)
                self._groups.update(dict.fromkeys(group.values, whole))
        return whole

    def found(self) -> list[Stream]:
        groups = {id(group): group for group in self._groups.values() if not group.blocked}
        return [Stream(tuple(one.writers), tuple(one.readers), one.capped) for one in groups.values()]


class _Part:
    """A stream with its layers."""

    def __init__(self, stream: Stream, layers: Mapping[str, nn.Layer], norms: Mapping[str, str]) -> None:
        self.capped = stream.capped
        self.readers = [layers[name] for name in stream.readers]
        self._writers = [(layers[name], layers.get(norms.get(name, ""))) for name in stream.writers]

    def fits(self) -> bool:
        """Whether the channels can be the same ones, and all that is scaled belongs to the layers."""
        written = [layer for layer, _ in self._writers]
        together = {id(layer): layer for layer in (*written, *self.readers)}
        return (
            len({*map(_outputs_of, written), *map(_inputs_of, self.readers)}) == 1
            and len({id(layer.weight) for layer in together.values()}) == len(together)
            and not any(isinstance(layer, nn.Conv2DTranspose) for layer in self.readers)
            and all(
                norm is None or not (norm.weight is None or norm.bias is None) for _, norm in self._writers
            )
        )

    def tensors(self) -> list[Tensor]:
        """All that `scale` changes."""
        return [tensor for tensor, _ in self._written()] + [reader.weight for reader in self.readers]

    def scale(self, factors: np.ndarray) -> None:
        """Divide what the writers give, multiply the readers' weights."""
        by = paddle.to_tensor(factors.astype(np.float32))
        for tensor, layer in self._written():
            tensor.set_value(tensor / (by if layer is None else along_weight(layer, by)))
        for reader in self.readers:
            reader.weight.set_value(reader.weight * _along_inputs(reader, by))

    def _written(self) -> list[tuple[Tensor, nn.Layer | None]]:
        """Tensors with a number per channel, and weights, these with their layer."""
        found: list[tuple[Tensor, nn.Layer | None]] = []
        for layer, norm in self._writers:
            if norm is not None:
                found += [(norm.weight, None), (norm.bias, None)]
                continue
            found.append((layer.weight, layer))
            if layer.bias is not None:
                found.append((layer.bias, None))
        return found

    def factors(self, seen: Sequence[_Seen]) -> np.ndarray:
        """What each channel is divided by; 1 on average.

        Weights of a depthwise convolution have a scale per channel: there, only the inputs count. Else the
        factor shares the difficulty between inputs and weights, sqrt(largest input / largest weight).
        """
        signal = np.max([one.typical for one in seen], axis=0)
        largest = np.max([one.largest for one in seen], axis=0)
        shared = [reader for reader in self.readers if not _is_depthwise(reader)]
        ratio = np.maximum(signal, 1e-12)
        if shared:
            weight = np.max([_largest_weights(reader) for reader in shared], axis=0)
            ratio = np.sqrt(ratio / np.maximum(weight, 1e-12))
            signal = np.where(weight > 0, signal, 0)
        at_cap = largest >= _CAP * 0.999 if self.capped else np.zeros(signal.shape, bool)
        ratio = np.where(signal > 0, ratio, np.nan)
        fixed = ratio[at_cap] if np.isfinite(ratio[at_cap]).any() else ratio
        if np.isfinite(fixed).any():
            ratio = ratio / np.exp(np.nanmean(np.log(fixed)))
        ratio = np.clip(np.nan_to_num(ratio, nan=1.0), 1 / _LARGEST, _LARGEST)
        if self.capped:
            ratio = np.where(at_cap, 1.0, np.maximum(ratio, _MARGIN * largest / _CAP))
        return ratio


@dataclass(frozen=True)
class _Seen:
    """Of each channel of a layer's inputs: the mean over images of the largest magnitude, and the largest."""

    typical: np.ndarray
    largest: np.ndarray


def _inputs_of_layers(
    model: nn.Layer, inputs: tuple[Tensor, ...], readers: set[nn.Layer]
) -> dict[int, _Seen]:
    """What these layers get, by their identity."""
    seen: dict[int, _Seen] = {}

    def look(layer: nn.Layer, given: tuple[Tensor, ...]) -> None:
        x = given[0]
        channels_last = isinstance(layer, nn.Linear) or layer._data_format.endswith("C")
        axis = x.ndim - 1 if channels_last else 1
        others = [a for a in range(1, x.ndim) if a != axis]
        each = (x.abs().max(others) if others else x.abs()).numpy().astype(np.float64)
        seen[id(layer)] = _Seen(each.mean(0), each.max(0))

    hooks = [layer.register_forward_pre_hook(look) for layer in readers]
    try:
        with paddle.no_grad():
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _answers(model: nn.Layer, inputs: tuple[Tensor, ...]) -> list[np.ndarray]:
    with paddle.no_grad():
        flat = paddle.utils.flatten(model(*inputs))
    return [out.numpy() for out in flat if isinstance(out, Tensor)]


def _is_proved(
    part: _Part, factors: np.ndarray, model: nn.Layer, inputs: tuple[Tensor, ...], expected: list[np.ndarray]
) -> bool:
    """Whether powers of two, which no product or sum rounds, leave the answers as they are.

    Through a ReLU6 those next to the factors, so that no channel comes nearer to 6 than it will.
    """
    state = [(tensor, tensor.clone()) for tensor in part.tensors()]
    powers = np.exp2(np.ceil(np.log2(factors))) if part.capped else np.exp2(np.arange(len(factors)) % 4 - 1.0)
    try:
        part.scale(powers)
        found = _answers(model, inputs)
    finally:
        for tensor, before in state:
            tensor.set_value(before)
    return all(
        bool(np.isfinite(a).all()) and np.abs(a - b).max() <= _TOLERANCE * max(np.abs(a).max(), 1e-30)
        for a, b in zip(expected, found, strict=True)
    )


def _largest_weights(layer: nn.Layer) -> np.ndarray:
    """The largest weight that each input channel is multiplied with."""
    weight = np.abs(layer.weight.numpy())
    if isinstance(layer, nn.Linear):
        return weight.max(1)
    by_group = weight.reshape(layer._groups, -1, *weight.shape[1:])  # [groups, outputs, inputs, …]
    return by_group.max(axis=(1, *range(3, by_group.ndim))).reshape(-1)


def _along_inputs(layer: nn.Layer, factor: Tensor) -> Tensor:
    """A number per input channel in the shape in which it is broadcast against the weight."""
    if isinstance(layer, nn.Linear):
        return factor.reshape([-1, 1])
    outputs = layer._out_channels // layer._groups
    rows = paddle.repeat_interleave(factor.reshape([layer._groups, -1]), outputs, axis=0)
    return rows.unsqueeze([2, 3])


def _is_depthwise(layer: nn.Layer) -> bool:
    return isinstance(layer, nn.Conv2D) and layer._groups == layer._in_channels


def _outputs_of(layer: nn.Layer) -> int:
    return layer.weight.shape[1] if isinstance(layer, nn.Linear) else layer._out_channels


def _inputs_of(layer: nn.Layer) -> int:
    return layer.weight.shape[0] if isinstance(layer, nn.Linear) else layer._in_channels
