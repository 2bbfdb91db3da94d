"""Running a model in evaluation mode for a while, and errors of Paddle's that name the layer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError


@contextmanager
def eval_mode(model: nn.Layer) -> Iterator[None]:
    """Within it, the model is in evaluation mode without gradients; modes and RNG are restored afterwards.

    Each layer's mode is kept by itself: `model.train()` afterwards would thaw a batch norm that was frozen.
    """
    modes = [(layer, layer.training) for layer in model.sublayers(include_self=True)]
    random_state = paddle.get_rng_state()
    model.eval()
    try:
        with paddle.no_grad():
            yield
    finally:
        for layer, training in modes:
            layer.training = training
        paddle.set_rng_state(random_state)


def check_runs(model: nn.Layer, inputs: Sequence[Tensor]) -> None:
    """A LowbitError where the model, in evaluation, does not run on these inputs."""
    with eval_mode(model), explained(model, inputs):
        model(*inputs)


@contextmanager
def explained(model: nn.Layer, inputs: Sequence[Tensor]) -> Iterator[None]:
    """Within it, where the model runs on a batch, Paddle's errors become LowbitErrors that name the layer."""
    shapes = ", ".join(str(list(x.shape)) for x in inputs)
    if any(0 in x.shape for x in inputs):
        raise LowbitError(f"a batch has no samples: {shapes}; leave it out")
    try:
        yield
    except (ValueError, RuntimeError, TypeError) as error:
        where = failing_layer(error, model)
        raise LowbitError(
            f"the network does not run on a batch of {shapes}{f', in {where}' if where else ''}: "
            f"{cause(error)}"
        ) from error


# The relevant line of Paddle's long error messages.


_RAISED = re.compile(r"\s*(\w*(?:Error|Exception): .*)")
_SOURCE = re.compile(r"\s*\(at /paddle/.*")


def cause(error: BaseException) -> str:
    """The line that names the cause, without the C++ stack and the transformed code around it.

    >>> cause(ValueError("In transformed code:\\n  ValueError: (InvalidArgument) 4 != 3.\\n  [Hint]"))
    'ValueError: (InvalidArgument) 4 != 3.'
    """
    lines = [_SOURCE.sub("", line).strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.fullmatch(line)]
    if raised:
        return raised[-1]
    of_paddle = [line for line in lines if line.startswith("(")]  # "(InvalidArgument) …"
    text = of_paddle[-1] if of_paddle else (lines[0] if lines else "no message")
    return f"{type(error).__name__}: {text}"


def failing_layer(error: BaseException, model: nn.Layer) -> str | None:
    """The dotted name and kind of the innermost layer of `model` that was running when `error` was raised."""
    names = {id(layer): name for name, layer in model.named_sublayers()}
    found = [layer for layer in _layers_on_the_stack(error) if id(layer) in names]
    return f'layer "{names[id(found[-1])]}" ({type(found[-1]).__name__})' if found else None


def _layers_on_the_stack(error: BaseException) -> Iterator[nn.Layer]:
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        if isinstance(owner, nn.Layer):
            yield owner
        trace = trace.tb_next
