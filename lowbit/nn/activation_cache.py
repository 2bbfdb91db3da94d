"""Activation cache: outputs of layers, recorded in one run and replayed in another.

Where two runs of a model on the same inputs differ from one layer on, every layer called before it gives
what it gave. A convolution that is replayed costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from paddle import nn


@dataclass
class Recording:
    """The outputs of layers by name, one for each call, and when each layer was called first and last."""

    outputs: dict[str, list[Any]] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    calls: int = 0

    def before(self, name: str) -> list[str]:
        """The layers whose calls all came before the first one of layer `name`."""
        end = self.first.get(
            name, 0
        )  # of a layer that was never called nobody depends, but nothing is gained
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

    def keep(name: str) -> Callable[..., None]:
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
