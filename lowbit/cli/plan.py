"""`lowbit plan`: what a recipe quantizes in a model, layer by layer, and what can run in integers."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowbit.cli.options import AsJson, ConfigFile, Overrides, Quiet, Wide, complete_model, recipe_option, show
from lowbit.config import load_config
from lowbit.errors import LowbitError
from lowbit.formatting import Section

if TYPE_CHECKING:
    from paddle import nn

    from lowbit.nn.edges import Edges
    from lowbit.nn.fused_blocks import Fusion
    from lowbit.recipe import LayerPlan, Plan

_CLASSES, _SHAPE = 1000, (3, 224, 224)  # ImageNet's, by default


def plan(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model's name, or `package.module:Class`.",
            show_default=False,
            autocompletion=complete_model,
        ),
    ] = None,
    recipe: Annotated[str, recipe_option("The recipe, in any of its dialects.")] = ...,  # type: ignore[assignment]
    config: ConfigFile = None,
    override: Overrides = None,
    num_classes: Annotated[
        int | None, typer.Option(min=1, help="Classes; default: the config's, else 1000.")
    ] = None,
    wide: Wide = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show what a recipe quantizes: every layer, its three products, and whether they can run in integers.

    Also shows which blocks are fused in training on a CPU, and why other batch norms are not.

    **Examples**

    - `lowbit plan resnet20 --recipe qat_w4a4`
    - `lowbit plan resnet20 --recipe qt_W4_mse_det__A4_mse_det__G4_minmax_sto`
    - `lowbit plan -c digits --recipe qat_w8a8 --json`
    """
    from lowbit.models import build_model
    from lowbit.nn.edges import Edges
    from lowbit.nn.fused_blocks import fuse
    from lowbit.recipe import describe_layers, load_recipe

    name, classes, kwargs, shape = _chosen_model(model, config, override)
    loaded = load_recipe(recipe)
    count = num_classes or classes or _CLASSES
    built = build_model(name, count, **kwargs)
    layers = loaded.assign(built)
    edges = _edges(built, layers, shape) if loaded.outputs == "quantized" else Edges()
    fusion = fuse(built)
    if as_json:
        found = {"model": name, "num_classes": count, "recipe": recipe}
        found["layers"] = describe_layers(layers)
        found["outputs"] = [asdict(edge) for edge in edges.found]
        found["outputs_in_floats"] = list(edges.without_module)
        found |= fusion.to_dict()
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    if num_classes is None and classes is None and not quiet:
        print(f"{_CLASSES} classes assumed; --num-classes says otherwise", file=sys.stderr)
    sections = plan_sections(layers, f"{name} with {recipe}")
    show([*sections, *_edge_sections(edges), *_fusion_sections(fusion)], wide=wide)


def _edges(model: nn.Layer, layers: list[LayerPlan], shape: tuple[int, int, int]) -> Edges:
    import paddle

    from lowbit.nn.edges import find_edges

    quantized = [assigned.layer.name for assigned in layers if not assigned.plan.is_full]
    return find_edges(model, [paddle.zeros([1, *shape])], quantized)


def _edge_sections(edges: Edges) -> list[Section]:
    """The tensors between layers that are quantized, and who reads them."""
    from lowbit.nn.edge_quantizers import edge_name

    if not edges.lines():
        return []
    rows = tuple(
        (edge_name(edge.owner, edge.place), ", ".join(edge.readers) or "no layer: a sum, a pool, …")
        for edge in edges.found
    )
    columns = ("output of", "read by the layers")
    return [Section("Tensors between layers", columns, rows, tuple(edges.lines()), left=len(columns))]


def _fusion_sections(fusion: Fusion) -> list[Section]:
    """The blocks that are fused in training, by what is fused; batch norms that are not, by the reason."""
    sections = []
    for title, columns, found in (
        ("Fused in training on a CPU", ("fused", "blocks"), fusion.fused),
        ("Batch norms that are not fused", ("why", "batch norms"), fusion.unfused),
    ):
        groups: dict[str, list[str]] = {}
        for name, text in found.items():
            groups.setdefault(text, []).append(name or "the network itself")
        if groups:
            rows = tuple((text, _some(names)) for text, names in groups.items())
            sections.append(Section(title, columns, rows, left=len(columns)))
    return sections


def _some(names: list[str]) -> str:
    """The names, or the first two, the last and their number.

    >>> _some(["a", "b", "c", "d"])
    'a, b, … d (4)'
    """
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, {names[1]}, … {names[-1]} ({len(names)})"


def _chosen_model(
    model: str | None, config: Path | None, override: list[str] | None
) -> tuple[str, int | None, dict[str, Any], tuple[int, int, int]]:
    if (model is None) == (config is None):
        raise LowbitError("give either a model's name or -c CONFIG, which names one")
    if config is None:
        if override:
            raise LowbitError("-o changes a setting of a config; give -c CONFIG, too")
        assert model is not None
        return model, None, {}, _SHAPE
    settings = load_config(config, override or ())
    return settings.Arch.name, settings.num_classes, settings.Arch.kwargs, settings.Global.image_shape


_WIDE = ("#", "type", "shape")


def plan_sections(layers: list[LayerPlan], title: str) -> list[Section]:
    """The layers with their operands or, with gradients quantized, with their plans; and a sum."""
    quantized = sum(not assigned.plan.is_full for assigned in layers)
    total = f"{quantized} of {len(layers)} layers are quantized."
    if not all(assigned.plan.is_straight_through for assigned in layers):
        return [*_plan_by_plan(layers, title), Section(total)]
    lines = ("Backward: straight-through (the gradients are not quantized).", *_reasons(layers), total)
    rows = []
    for assigned in layers:
        forward = assigned.plan.forward
        why = assigned.plan.runs_in_integers(assigned.layer.type)["forward"]
        integers = _left_as_it_is(assigned) if assigned.plan.is_full else "none" if why else "forward"
        rows.append((*_cells(assigned), str(forward.input), str(forward.weight), integers))
    columns = ("layer", *_WIDE, "input", "weight", "integers")
    return [Section(title, columns, tuple(rows), lines, left=len(columns), wide=_WIDE)]


def _cells(assigned: LayerPlan) -> tuple[str, ...]:
    layer = assigned.layer
    return " = ".join(layer.names), str(layer.index), layer.type, "x".join(map(str, layer.shape))


def _left_as_it_is(assigned: LayerPlan) -> str:
    return f"left as it is: {assigned.note or 'its grids are full'}"


def _reasons(layers: list[LayerPlan]) -> list[str]:
    """A line for every reason why `forward` does not run in integers, with the layers."""
    found: dict[str, list[str]] = {}
    for assigned in layers:
        reason = assigned.plan.runs_in_integers(assigned.layer.type)["forward"]
        if reason and not assigned.plan.is_full:
            found.setdefault(f"forward: {reason}", []).append(assigned.layer.name)
    return [f"Not in integers, {reason}: {', '.join(names)}" for reason, names in found.items()]


def _plan_by_plan(layers: list[LayerPlan], title: str) -> list[Section]:
    """Each layer with the number of its plan, and each plan once: six operands would not fit into a row."""
    numbers: dict[tuple[Plan, str], int] = {}  # the type of layer decides what can be in integers
    members: dict[int, list[str]] = {}
    rows = []
    for assigned in layers:
        shown = _left_as_it_is(assigned)
        if not assigned.plan.is_full:
            number = numbers.setdefault((assigned.plan, assigned.layer.type), len(numbers) + 1)
            members.setdefault(number, []).append(assigned.layer.name)
            shown = str(number)
        rows.append((*_cells(assigned), shown))
    columns = ("layer", *_WIDE, "plan")
    sections = [Section(title, columns, tuple(rows), left=len(columns), wide=_WIDE)]
    for (plan, layer_type), number in numbers.items():
        count = len(members[number])
        heading = f"Plan {number}, of {count} {layer_type} layer{'s' if count > 1 else ''}"
        sections.append(_products(plan, layer_type, heading))
    return sections


def _products(plan: Plan, layer_type: str, title: str) -> Section:
    from lowbit.recipe import PRODUCTS, operands_of

    rows = []
    for name, reason in plan.runs_in_integers(layer_type).items():
        product = getattr(plan, name)
        operands = [
            f"{operand} {spec if product else 'full' if operand == 'grad_output' else 'as in forward'}"
            for operand, spec in operands_of(product or PRODUCTS[name]()).items()
        ]
        rows.append((name, *operands, f"no: {reason}" if reason else "yes"))
    columns = ("product", "operands", "", "can run in integers")
    return Section(title, columns, tuple(rows), left=len(columns))
