"""Quantizers at the input or the output of modules, shared by the layers that read the same tensor.

`attach` puts them where `find_edges` says, as sublayers `output_quantizer` and `input_quantizer` with a hook:
what is quantized is defined by modules, in training as in evaluation, and saved with them. Names of other
parameters stay. A layer that reads such a tensor has a `SharedQuantizer` as its input quantizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.nn.calibration import FOLDED_NORM, FoldedNorm
from lowbit.nn.edges import Edges, Place
from lowbit.nn.exact_rounding import ROUNDINGS
from lowbit.nn.qtensor import with_axes_of
from lowbit.nn.quant_layers import is_quantized
from lowbit.nn.quantizer import KnownScale, Quantizer
from lowbit.numerics import Grid, fake_quantize, pact_fake_quantize
from lowbit.numerics.fake_quant import rounded_bound
from lowbit.numerics.observed import fits
from lowbit.recipe.plan import Plan
from lowbit.recipe.recipe import Lsq, Pact
from lowbit.recipe.spec import TensorSpec

_EIGHT_BITS = {"grid": "int8", "sign": "auto"}


@dataclass(eq=False)
class _Owner:
    """A quantizer that belongs to another module: no sublayer of who holds this."""

    quantizer: Quantizer


class SharedQuantizer(Quantizer):
    """The input quantizer of a layer whose input is on a grid already, that of a module's quantizer.

    It has no state. Whatever comes is rounded with the same scale, which changes nothing that is on the grid:
    a tensor may have been moved in between (reshaped, sliced), overwritten, or come another way.
    """

    def __init__(self, owner: Quantizer, *, name: str = "") -> None:
        nn.Layer.__init__(self)
        self._owner = _Owner(owner)
        self.spec, self.layout, self.role, self.layer_name = owner.spec, owner.layout, "input", name

    @property
    def source(self) -> Quantizer:
        """The quantizer whose scale this layer reads."""
        return self._owner.quantizer

    @paddle.jit.not_to_static
    def forward(self, x: Tensor) -> Tensor:
        if self.source.calibration_stats is not None or self.source.only_shows_shapes:
            return x
        if paddle.in_dynamic_mode():
            return self.values_and_scale(x)[0]
        with paddle.no_grad():  # a served program has no gradients, and PyLayers do not survive in it
            return self.values_and_scale(x)[0]

    def values_and_scale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.check_ready()
        scale, bound = self._scale_and_bound()
        if bound is None:
            return fake_quantize(x, scale, self.grid()), scale
        return pact_fake_quantize(x, bound, scale, self.grid()), scale

    def known_scale(self, x: Tensor) -> KnownScale | None:
        if not self.training or not fits(x):
            return None
        scale, bound = self._scale_and_bound()
        return KnownScale(with_axes_of(x, scale), self.grid(), bound)

    def _scale_and_bound(self) -> tuple[Tensor, Tensor | None]:
        scale, alpha = self.source.scale().detach(), self.source.alpha
        return scale, None if alpha is None else rounded_bound(alpha.value, scale, self.grid())

    def moving_scale(self) -> None:
        return None

    def dynamic_operand(self, x: Tensor) -> None:
        return None

    @paddle.jit.not_to_static
    def integers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.source.integers(x)

    def grid(self) -> Grid:
        return self.source.grid()

    def scale(self) -> Tensor | None:
        return self.source.scale()

    def check_ready(self) -> None:
        self.source.check_ready()

    def start_calibration(self) -> None:
        """Its owner is calibrated."""

    def end_calibration(self) -> None:
        """As start_calibration."""

    @property
    def knows_sign(self) -> bool:
        return self.source.knows_sign

    @property
    def is_plain(self) -> bool:
        return super().is_plain and self.source.is_plain

    @property
    def gives_integers(self) -> bool:
        return self.source.gives_integers

    @property
    def only_shows_shapes(self) -> bool:
        return self.source.only_shows_shapes

    @property
    def calibration_stats(self) -> None:
        return None

    @property
    def alpha(self) -> Any:
        return self.source.alpha

    @property
    def step(self) -> Any:
        return self.source.step

    @property
    def offset(self) -> Any:
        return self.source.offset

    @property
    def kept(self) -> Any:
        return self.source.kept

    @property
    def fixed(self) -> Any:
        return self.source.fixed


# Modules with quantizers. The hooks are functions of this file that look the quantizer up in the module, so
# that a copy of the module uses its own.


def attach(
    model: nn.Layer,
    edges: Edges,
    plans: Mapping[str, Plan],
    *,
    pact: Pact | None = None,
    lsq: Lsq | None = None,
) -> None:
    """Give the owners of the edges their quantizers, and the layers that read them shared ones.

    Call it after the layers have been quantized.
    """
    layers = dict(model.named_sublayers())
    norms = dict(edges.batch_norms)
    setattr(model, ROUNDINGS, edges.roundings)
    for name in plans:
        setattr(layers[name], FOLDED_NORM, FoldedNorm(layers[norms[name]] if name in norms else None))
    for edge in edges.found:
        owner, spec = layers[edge.owner], edge_spec(plans[edge.spec_of], edge.spec_of)
        quantizer = Quantizer(spec, "NC", edge.place, shape=[1, 1], name=edge.owner, pact=pact, lsq=lsq)
        quantizer.training = owner.training
        setattr(owner, f"{edge.place}_quantizer", quantizer)
        if edge.place == "output":
            owner.register_forward_post_hook(_quantize_output)
        else:
            owner.register_forward_pre_hook(_quantize_input)
        for reader in edge.readers:
            if layers[reader].input_quantizer.spec == spec:
                layers[reader].input_quantizer = SharedQuantizer(quantizer, name=reader)


def edge_name(owner: str, place: Place) -> str:
    """What messages and files call an edge.

    >>> edge_name("layer1.0", "input")
    'layer1.0 (input)'
    """
    return owner if place == "output" else f"{owner} (input)"


def edge_spec(plan: Plan, layer: str) -> TensorSpec:
    """The spec of an edge: that of a layer's input, in 8 bits where the layer has fewer.

    Sums of many layers in fewer bits would lose too much; a layer with fewer rounds its input once more.
    """
    spec = plan.forward.input
    if not plan.is_straight_through:
        raise LowbitError(
            f'outputs: quantized is for QAT and post-training quantization, but the plan of layer "{layer}" '
            "quantizes gradients: leave it out"
        )
    if not spec.grid.is_integer or not spec.keeps_scales or spec.granularity.letters:
        raise LowbitError(
            f'outputs: quantized follows the input of layer "{layer}", which is {spec}: engines need one '
            "scale per tensor that is known beforehand. Use an integer grid, granularity per-tensor and "
            "scaling fixed, moving_average or learned"
        )
    if spec.grid.bits == 8 and spec.sign != "asymmetric":
        return spec
    return TensorSpec(**spec.as_words() | _EIGHT_BITS)


def edge_quantizers(model: nn.Layer) -> dict[tuple[str, Place], Quantizer]:
    """The quantizers of a model's edges by their owner's name and place."""
    found: dict[tuple[str, Place], Quantizer] = {}
    for name, layer in model.named_sublayers():
        if "output_quantizer" in layer._sub_layers:
            found[name, "output"] = layer.output_quantizer
        if "input_quantizer" in layer._sub_layers and not is_quantized(layer):
            found[name, "input"] = layer.input_quantizer
    return found


@contextmanager
def without_edges(model: nn.Layer) -> Iterator[None]:
    """Within it the edges are not quantized; layers that share a quantizer round their input themselves."""
    with ExitStack() as undo:
        for quantizer in edge_quantizers(model).values():
            if "forward" in vars(quantizer):  # switched off by an outer block, which puts it back
                continue
            # An attribute of the object hides the class's method.
            object.__setattr__(quantizer, "forward", _unchanged)
            undo.callback(object.__delattr__, quantizer, "forward")
        yield


def _unchanged(x: Tensor) -> Tensor:
    return x


@paddle.jit.not_to_static  # decided in Python, before a program is made of it
def _quantize_output(layer: nn.Layer, _given: Any, output: Any) -> Any:
    if not isinstance(output, Tensor | paddle.pir.Value):
        raise LowbitError(
            f'outputs: quantized: the module "{layer.output_quantizer.layer_name}" gave one tensor when it '
            f"was traced and gives a {type(output).__name__} now: let it always return one tensor, or write "
            "outputs: full"
        )
    return layer.output_quantizer(output)


@paddle.jit.not_to_static
def _quantize_input(layer: nn.Layer, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return (layer.input_quantizer(given[0]), *given[1:])


# For fused steps, which call no hooks.


def only_edge(layer: nn.Layer) -> Quantizer | None:
    """The quantizer of the layer's output, if that is all that a call does besides the layer's own code."""
    hooks, quantizer = layer._forward_post_hooks, layer._sub_layers.get("output_quantizer")
    if "output_quantizer" in vars(layer):  # hidden by another one, which the hook calls
        return None
    if len(hooks) != 1 or layer._forward_pre_hooks or type(quantizer) is not Quantizer:
        return None
    return quantizer if _quantize_output in hooks.values() and quantizer.is_plain else None
