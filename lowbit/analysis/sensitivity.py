"""The loss of a model with one layer quantized, or all but one, summed up batch after batch.

Nothing is computed twice that cannot have changed: where two runs of a model on the same inputs differ from
one layer on, every layer called before it gives what it gave. Its outputs are recorded in one run and
replayed in the other, and a convolution that is replayed costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from lowbit.data import Batch
from lowbit.errors import LowbitError
from lowbit.nn.convert import quantized_layers, quantizing_only
from lowbit.nn.inspect import layers_by_name


@dataclass
class Recording:
    """The outputs of layers by name, one for each call, and when each layer was called first and last."""

    outputs: dict[str, list[Any]] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    calls: int = 0

    def before(self, name: str) -> list[str]:
        """The layers whose calls all came before the first one of layer `name`."""
        end = self.first.get(name, 0)  # a layer that was never called changes nothing, whatever is replayed
        return [other for other, last in self.last.items() if last < end]

    def _add(self, name: str, output: Any) -> None:
        self.outputs.setdefault(name, []).append(output)
        self.first.setdefault(name, self.calls)
        self.last[name] = self.calls
        self.calls += 1


@contextmanager
def recording(layers: Mapping[str, nn.Layer]) -> Iterator[Recording]:
    """Within it, the outputs of layers are recorded.

    with recording(layers_by_name(model)) as seen:
        model(images)
    """
    seen = Recording()

    def keep(name: str) -> Callable[..., Any]:
        return lambda _layer, _inputs, output: seen._add(name, output)

    hooks = [layer.register_forward_post_hook(keep(name)) for name, layer in layers.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def replaying(layers: Mapping[str, nn.Layer], seen: Recording, *, until: str) -> Iterator[None]:
    """Within it, one run of the model on the same inputs takes what was recorded before layer `until`.

    with replaying(layers, seen, until="conv5"):
        model(images)
    """
    with ExitStack() as undo:
        for name in seen.before(until):
            outputs = iter(seen.outputs[name])
            # Of the object, so that it hides the method of the class.
            object.__setattr__(layers[name], "forward", lambda *_, outputs=outputs: next(outputs))
            undo.callback(object.__delattr__, layers[name], "forward")
        yield


_BROKEN = 1e6  # the loss of an image where it is NaN or Inf: more than anything, and still a number


@dataclass
class Sum:
    """Over images: the cross entropy, how many got their class, and how far the answers moved.

    The last is the KL divergence from those in full precision. It needs no labels and is never below 0, so
    that a few images tell small changes apart where the cross entropy goes up for some and down for others.
    """

    loss: float = 0.0
    hits: int = 0
    divergence: float = 0.0


@dataclass
class Sums:
    """What has been added up so far; `only` has one layer quantized, `without` all but one."""

    batches: int = 0
    images: int = 0
    full: Sum = field(default_factory=Sum)
    quantized: Sum = field(default_factory=Sum)
    only: dict[str, Sum] = field(default_factory=dict)
    without: dict[str, Sum] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """As plain values, for JSON; `Sums.of` reads them again."""
        return asdict(self)

    @staticmethod
    def of(values: dict[str, Any]) -> Sums:
        """
        >>> Sums.of(Sums(images=3).values()).images
        3
        """
        only, without = (
            {name: Sum(**one) for name, one in values[key].items()} for key in ("only", "without")
        )
        full, quantized = Sum(**values["full"]), Sum(**values["quantized"])
        return Sums(values["batches"], values["images"], full, quantized, only, without)


def logits_of(model: nn.Layer, batch: Batch) -> Tensor:
    """What the model answers to a batch of images, or of several inputs in a tuple: its (first) output."""
    inputs = batch.images if isinstance(batch.images, tuple) else (batch.images,)
    outputs = paddle.utils.flatten(model(*map(paddle.to_tensor, inputs)))
    logits = next((output for output in outputs if isinstance(output, Tensor)), None)
    if logits is None or logits.ndim != 2:
        raise LowbitError(
            "the analysis measures the loss of classes: forward must return logits [N, classes] (first of "
            f"several outputs), it returns {'no tensor' if logits is None else list(logits.shape)}"
        )
    return logits.astype("float32")


def add_batch(model: nn.Layer, batch: Batch, sums: Sums, advance: Callable[[], None] = lambda: None) -> None:
    """Runs a batch through the model as it is, in full, and twice for every quantized layer.

    Layers in front of the one that is switched give what they gave in the run of all, and are not computed
    again. `advance` is called after every run.
    """
    layers, names = layers_by_name(model), list(quantized_layers(model))
    labels = np.asarray(batch.labels)

    def run(into: Sum) -> Tensor:
        logits = logits_of(model, batch)
        if len(labels) and int(labels.max()) >= logits.shape[1]:
            raise LowbitError(
                f"the data have the label {int(labels.max())}, but the network has {logits.shape[1]} classes "
                "(the first is 0): give data of these classes"
            )
        loss = F.cross_entropy(logits, paddle.to_tensor(labels), reduction="sum")
        into.loss += _finite(loss, len(labels))
        into.hits += int((logits.numpy().argmax(axis=1) == labels).sum())
        advance()
        return F.log_softmax(logits.astype("float64"))

    with quantizing_only(model, ()), recording(layers) as seen:
        full = run(sums.full)

    def compare(into: Sum) -> None:
        into.divergence += _finite((full.exp() * (full - run(into))).sum(), len(labels))

    for name in names:
        with quantizing_only(model, {name}), replaying(layers, seen, until=name):
            compare(sums.only.setdefault(name, Sum()))
    with quantizing_only(model, names), recording(layers) as seen:
        compare(sums.quantized)
    for name in names:
        with quantizing_only(model, set(names) - {name}), replaying(layers, seen, until=name):
            compare(sums.without.setdefault(name, Sum()))
    sums.batches += 1
    sums.images += len(labels)


def _finite(total: Tensor, images: int) -> float:
    return float(total) if math.isfinite(float(total)) else _BROKEN * images
