"""A model as a Paddle program in which every operand that is quantized has a mark with its layer's name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import paddle
from paddle import Tensor, nn
from paddle.static import InputSpec

from lowbit.deploy.expected import untranslatable
from lowbit.errors import LowbitError
from lowbit.layers import eval_mode, is_quantized

PRODUCT_LAYERS = (nn.Conv2D, nn.Conv2DTranspose, nn.Linear)
_PREFIX = "lowbit"


def trace(model: nn.Layer, specs: Sequence[InputSpec], model_name: str) -> Any:
    """The program (paddle.jit's ConcreteProgram) of the model in evaluation, for inputs like these.

    Quantized layers give their plain product between marks, which `read_mark` knows; other convolutions and
    Linear layers have a mark behind their output. The model comes back as it was, also after an error.
    """
    with eval_mode(model), _marked(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle's own, about its own code
        try:
            # Through a layer of ours: what to_static leaves on its object does not stay on the model.
            traced = _Traced(model)
            static = paddle.jit.to_static(traced.forward, input_spec=[list(specs)], full_graph=True)
            return static.concrete_program
        except LowbitError:
            raise
        except Exception as error:  # Paddle translates the user's Python; whatever it meets there comes out
            raise untranslatable(error, model, model_name) from error


def read_mark(message: str) -> tuple[str, str] | None:
    """The layer and the role ("input", "weight" or "output") of a mark; None for a print of the user's own.

    >>> read_mark("lowbit|input|layer1.0.conv1")
    ('layer1.0.conv1', 'input')
    """
    prefix, _, rest = message.partition("|")
    role, _, layer = rest.partition("|")
    return (layer, role) if prefix == _PREFIX and role in ("input", "weight", "output") else None


def layer_names(model: nn.Layer) -> dict[str, nn.Layer]:
    """The model's convolutions and Linear layers; one that it uses in two places has its first name."""
    layers = dict(model.named_sublayers(include_self=True))
    return {name or "model": layer for name, layer in layers.items() if isinstance(layer, PRODUCT_LAYERS)}


class _Traced(nn.Layer):
    def __init__(self, model: nn.Layer) -> None:
        super().__init__()
        self.model = model
        self.training = False

    def forward(self, inputs: list[Tensor]) -> Any:
        return self.model(*inputs)


@contextmanager
def _marked(model: nn.Layer) -> Iterator[None]:
    with ExitStack() as undo:
        for name, layer in layer_names(model).items():
            if is_quantized(layer):
                # Past nn.Layer's own bookkeeping, so that nothing of it stays.
                object.__setattr__(layer, "forward", _marked_forward(layer, name))
                undo.callback(object.__delattr__, layer, "forward")
            hook = layer.register_forward_post_hook(
                lambda _layer, _inputs, output, name=name: _mark(output, name, "output")
            )
            undo.callback(hook.remove)
        yield


def _marked_forward(layer: nn.Layer, name: str) -> Callable[..., Tensor]:
    @paddle.jit.not_to_static
    def forward(x: Tensor, *geometry: Any) -> Tensor:
        # The weight's values and the bias come from the layer itself, not from the program.
        return layer.product(_mark(x, name, "input"), _mark(layer.weight, name, "weight"), None, *geometry)

    return forward


def _mark(x: Any, layer: str, role: str) -> Any:
    """The same tensor behind an operator that changes nothing and carries a message; it never runs."""
    is_value = isinstance(x, paddle.pir.Value)
    return paddle.static.Print(x, message=f"{_PREFIX}|{role}|{layer}") if is_value else x
