"""The blocks of a network, found by running it: residual modules, else layers with what follows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import paddle
from paddle import Tensor, nn

from lowbit.nn.eval_mode import eval_mode
from lowbit.nn.quant_layers import is_quantized

_NOISE = 0.1  # added to a module's input to see whether it reaches the output past the quantized layers


@dataclass(frozen=True)
class Block:
    """Modules, by name, that are called one after the other: one tensor goes in, one comes out.

    `follows` says that the input is the very tensor that the block before it gives.
    """

    modules: tuple[str, ...]
    follows: bool = False

    @property
    def name(self) -> str:
        """The name for people: that of the first module."""
        return self.modules[0] or "the network itself"

    def run(self, layers: Mapping[str, nn.Layer], x: Tensor) -> Tensor:
        """What the modules make of `x`; `layers` are those of the network by name."""
        for name in self.modules:
            x = layers[name](x)
        return x


@dataclass(frozen=True)
class Blocks:
    """The blocks in the order in which they run, and the quantized layers that are in none, with why."""

    blocks: tuple[Block, ...] = ()
    left_alone: dict[str, str] = field(default_factory=dict)


@dataclass
class _Call:
    """One call of a module; tensors are held so that each keeps its identity."""

    name: str
    layer: nn.Layer
    inputs: tuple[Any, ...]
    output: Any = None
    children: list[_Call] = field(default_factory=list)

    @property
    def is_simple(self) -> bool:
        """One tensor in, one out."""
        return (
            len(self.inputs) == 1 and isinstance(self.inputs[0], Tensor) and isinstance(self.output, Tensor)
        )

    @property
    def is_chain(self) -> bool:
        """Whether it only calls its children, one after the other."""
        if not self.children or not self.is_simple or not all(child.is_simple for child in self.children):
            return False
        tensors = [self.inputs[0], *(child.output for child in self.children)]
        given = [child.inputs[0] for child in self.children]
        return all(a is b for a, b in zip(tensors, given, strict=False)) and tensors[-1] is self.output


def find_blocks(model: nn.Layer, *inputs: Tensor) -> Blocks:
    """Run the prepared model on `inputs` and divide its quantized layers into blocks.

    A block is
    1. a residual module: its input reaches its output on more than one path; and modules of the same class;
    2. a module with one quantized layer, such as convolution, batch norm and activation;
    3. else a quantized layer with the modules behind it that take its output.
    Modules that only call others one after the other are divided. A layer that runs several times in a
    forward pass, or with several inputs, is in no block.

    >>> find_blocks(model, images).blocks[0].modules    # doctest: +SKIP
    ('conv1', 'bn1')
    """
    with eval_mode(model):
        root = _trace(model, inputs)
        counts = Counter(id(call.layer) for call in _walk(root))
        once = {id(call.layer) for call in _walk(root) if counts[id(call.layer)] == 1 and call.is_simple}
        residual = {type(call.layer) for call in _walk(root) if id(call.layer) in once and _is_residual(call)}
    found: list[list[_Call]] = []

    def visit(call: _Call) -> None:
        layers = [layer for layer in call.layer.sublayers(include_self=True) if is_quantized(layer)]
        if not layers:
            last = found[-1][-1] if found else None
            if (
                last is not None
                and call.is_simple
                and id(call.layer) in once
                and call.inputs[0] is last.output
            ):
                found[-1].append(call)
            return
        whole = len(layers) == 1 or type(call.layer) in residual
        if whole and id(call.layer) in once and all(counts[id(layer)] == 1 for layer in layers):
            found.append([call])
            return
        if is_quantized(call.layer):
            return  # several calls or inputs: left alone
        for child in call.children:
            visit(child)

    visit(root)
    blocks = [
        Block(
            tuple(call.name for call in calls),
            follows=number > 0 and calls[0].inputs[0] is found[number - 1][-1].output,
        )
        for number, calls in enumerate(found)
    ]
    inside = {id(layer) for calls in found for c in calls for layer in c.layer.sublayers(include_self=True)}
    left_alone = {
        name: "it runs several times, with several inputs, or not at all in a forward pass"
        for name, layer in model.named_sublayers(include_self=True)
        if is_quantized(layer) and id(layer) not in inside
    }
    return Blocks(tuple(blocks), left_alone)


def _walk(call: _Call) -> Iterator[_Call]:
    yield call
    for child in call.children:
        yield from _walk(child)


def _trace(model: nn.Layer, inputs: Sequence[Tensor]) -> _Call:
    """The calls of all modules but those inside of quantized layers, as a tree."""
    names = {id(layer): name for name, layer in reversed(list(model.named_sublayers(include_self=True)))}
    inner = {
        id(part)
        for layer in model.sublayers(include_self=True)
        if is_quantized(layer)
        for part in layer.sublayers()
    }
    stack: list[_Call] = [_Call("", nn.Identity(), ())]

    def enter(layer: nn.Layer, given: tuple[Any, ...]) -> None:
        call = _Call(names[id(layer)], layer, tuple(given))
        stack[-1].children.append(call)
        stack.append(call)

    def leave(_layer: nn.Layer, _given: tuple[Any, ...], output: Any) -> None:
        stack.pop().output = output

    hooks = []
    try:
        for layer in model.sublayers(include_self=True):
            if id(layer) not in inner:
                hooks += [layer.register_forward_pre_hook(enter), layer.register_forward_post_hook(leave)]
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return stack[0].children[0]


def _is_residual(call: _Call) -> bool:
    """Whether the input reaches the output on several paths; modules that only call others do not count."""
    quantized = [c for c in _walk(call) if is_quantized(c.layer)]
    if len(quantized) < 2 or call.is_chain or is_quantized(call.layer):
        return False
    x = call.inputs[0]
    if sum(any(given is x for given in child.inputs) for child in call.children) > 1:
        return True
    with _constant(quantized):
        again = call.layer(x + _NOISE * (x.abs().mean() + 1))
    return not bool(paddle.allclose(again, call.output, rtol=1e-3, atol=1e-5))


@contextmanager
def _constant(calls: Sequence[_Call]) -> Iterator[None]:
    """Within it, layers give what they gave, whatever they get."""
    hooks = [
        call.layer.register_forward_post_hook(lambda _layer, _given, _out, kept=call.output: kept)
        for call in calls
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
