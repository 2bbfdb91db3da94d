"""The tables of `lowbit plan`: the layers with their operands, or, with gradients quantized, plan by plan."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from lowbit.recipe import LayerPlan, Plan


def print_plan(layers: list[LayerPlan], title: str) -> None:
    """The tables, why what is not in integers is not, and a sum."""
    # As wide as it must be where nobody watches: a folded table is no use to grep or to a file.
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    console.print(Text(title))
    if all(assigned.plan.is_straight_through for assigned in layers):
        console.print(_table_of_layers(layers))
        console.print("Backward: straight-through (the gradients are not quantized).")
        for line in _reasons(layers):
            console.print(Text(line), soft_wrap=True)
    else:
        _print_plan_by_plan(layers, console)
    quantized = sum(not assigned.plan.is_full for assigned in layers)
    console.print(f"{quantized} of {len(layers)} layers are quantized.")


def _empty_table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold", justify="right" if title == "#" else "left")
    return table


def _cells(assigned: LayerPlan) -> list[str]:
    layer = assigned.layer
    return [str(layer.index), " = ".join(layer.names), layer.type, "x".join(map(str, layer.shape))]


def _left_as_it_is(assigned: LayerPlan) -> str:
    return f"left as it is: {assigned.note or 'its grids are full'}"


def _add_row(table: Table, *cells: str) -> None:
    table.add_row(*map(Text, cells))  # not markup


def _table_of_layers(layers: list[LayerPlan]) -> Table:
    """Where only `forward` is quantized, its two operands fit into the row of a layer."""
    table = _empty_table(
        *("#", "layer", "type", "weight", "forward\ninput", "forward\nweight", "can run in integers")
    )
    for assigned in layers:
        forward = assigned.plan.forward
        why = assigned.plan.runs_in_integers(assigned.layer.type)["forward"]
        integers = _left_as_it_is(assigned) if assigned.plan.is_full else "none" if why else "forward"
        _add_row(table, *_cells(assigned), str(forward.input), str(forward.weight), integers)
    return table


def _reasons(layers: list[LayerPlan]) -> list[str]:
    """A line for every reason why `forward` does not run in integers, with the layers."""
    found: dict[str, list[str]] = {}
    for assigned in layers:
        reason = assigned.plan.runs_in_integers(assigned.layer.type)["forward"]
        if reason and not assigned.plan.is_full:
            found.setdefault(f"forward: {reason}", []).append(assigned.layer.name)
    return [f"Not in integers, {reason}: {', '.join(names)}" for reason, names in found.items()]


def _print_plan_by_plan(layers: list[LayerPlan], console: Console) -> None:
    """Each layer with the number of its plan, and each plan once: six operands would not fit into a row."""
    numbers: dict[tuple[Plan, str], int] = {}  # the type of layer decides what can be in integers
    members: dict[int, list[str]] = {}
    table = _empty_table("#", "layer", "type", "weight", "plan")
    for assigned in layers:
        if assigned.plan.is_full:
            number = _left_as_it_is(assigned)
        else:
            number = numbers.setdefault((assigned.plan, assigned.layer.type), len(numbers) + 1)
            members.setdefault(number, []).append(assigned.layer.name)
        _add_row(table, *_cells(assigned), str(number))
    console.print(table)
    for (plan, layer_type), number in numbers.items():
        count = len(members[number])
        console.print(f"\nPlan {number}, of {count} {layer_type} layer{'s' if count > 1 else ''}")
        console.print(_table_of_products(plan, layer_type))
    console.print()


def _table_of_products(plan: Plan, layer_type: str) -> Table:
    from lowbit.recipe import PRODUCTS, operands_of

    table = _empty_table("product", "operands", "", "can run in integers")
    for name, reason in plan.runs_in_integers(layer_type).items():
        product = getattr(plan, name)
        operands = [
            f"{operand} {spec if product else 'full' if operand == 'grad_output' else 'as in forward'}"
            for operand, spec in operands_of(product or PRODUCTS[name]()).items()
        ]
        _add_row(table, name, *operands, f"no: {reason}" if reason else "yes")
    return table
