"""Who reads the result of each batch norm: a ReLU, a residual sum, or somebody else.

Found in the graph of gradients of one forward pass, so that it holds for whatever code the model has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import paddle
from paddle import Tensor, nn

from lowbit.layers.eval_mode import eval_mode

RELU, SUM, RECTIFIED_SUM = "a ReLU", "a sum", "a sum that a ReLU reads"
_ATTRIBUTE = "lowbit_reader"


def note_readers(model: nn.Layer, example: Tensor) -> int:
    """Note at each batch norm's weight its only reader, if a ReLU or a sum; returns how many have one.

    Of those, `fast_neighbours` computes norm, sum and ReLU in one pass. The model is run once as it is in
    evaluation, and nothing of it is changed; if it does not run, nothing is known. Outside of
    `fast_neighbours`, and before `prepare`.

    >>> model = nn.Sequential(nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.ReLU())
    >>> note_readers(model, paddle.randn([1, 3, 8, 8]))
    1
    """
    norms = [layer for layer in model.sublayers() if type(layer) is nn.BatchNorm2D]
    # Where somebody listens, a tensor must come out.
    norms = [norm for norm in norms if norm.weight is not None and not norm._forward_post_hooks]
    results: dict[nn.Layer, list[Any]] = {norm: [] for norm in norms}
    hooks = [
        norm.register_forward_post_hook(lambda layer, given, out: results[layer].append(out.grad_fn))
        for norm in results
    ]
    try:
        with eval_mode(model), paddle.enable_grad():
            readers = _readers(model(example))
    except Exception:  # the user's own forward may raise anything; training will tell, with the layer's name
        readers, results = {}, {norm: [] for norm in norms}
    finally:
        for hook in hooks:
            hook.remove()
    for norm, calls in results.items():
        found = {_reader(node, readers) for node in calls}
        setattr(norm.weight, _ATTRIBUTE, found.pop() if len(found) == 1 else None)
    return sum(noted_reader(norm.weight) is not None for norm in norms)


def noted_reader(weight: Tensor | None) -> str | None:
    """RELU, SUM or RECTIFIED_SUM if that alone reads the batch norm with this weight; None: not known."""
    return getattr(weight, _ATTRIBUTE, None)


def _reader(node: Any, readers: dict[int, list[Any]]) -> str | None:
    match _names(node, readers):
        case ["ReluGradNode"]:
            return RELU
        case ["AddGradNode"]:
            behind = _names(readers[node.node_ptr()][0], readers)
            return RECTIFIED_SUM if behind == ["ReluGradNode"] else SUM
    return None


def _names(node: Any, readers: dict[int, list[Any]]) -> list[str | None]:
    found = [] if node is None else readers[node.node_ptr()]
    return [None if reader is None else reader.name() for reader in found]


def _readers(output: Any) -> dict[int, list[Any]]:
    """By address of a node of the graph: the nodes that read its result, one as often as it does.

    None is the model's caller.
    """
    readers: dict[int, list[Any]] = defaultdict(list)
    waiting = [tensor.grad_fn for tensor in _tensors(output) if tensor.grad_fn is not None]
    for node in waiting:
        readers[node.node_ptr()].append(None)
    seen = set()
    while waiting:
        node = waiting.pop()
        if node.node_ptr() in seen:
            continue
        seen.add(node.node_ptr())
        for source in node.next_functions:
            if source is not None:
                readers[source.node_ptr()].append(node)
                waiting.append(source)
    return readers


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from _tensors(part)
    elif isinstance(output, dict):
        yield from _tensors(list(output.values()))
