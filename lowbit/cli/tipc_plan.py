"""`lowbit tipc plan`: the commands of a chain test's config; and what the other commands of it share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowbit.errors import LowbitError, did_you_mean

if TYPE_CHECKING:
    from lowbit.tipc import ChainPlan

ConfigArgument = Annotated[
    Path, typer.Argument(help="A config such as `train_infer_python.txt`.", show_default=False)
]
ModeArgument = Annotated[
    str,
    typer.Argument(
        help="`lite_train_lite_infer`, `lite_train_whole_infer`, `whole_train_whole_infer` or `whole_infer`.",
        show_default=False,
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        help="`cpu`: everything on the CPU; `auto`: the same where there is no card; left out: what the "
        "config asks for."
    ),
]
DialectOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="`generic` or `paddleclas`: whose runner the config is for. Left out: recognised from its keys.",
    ),
]
PythonOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The interpreter, instead of the config's.")
]


def plan(
    config: ConfigArgument,
    mode: ModeArgument,
    original: Annotated[
        bool, typer.Option("--original", help="Show what the original scripts would have run instead.")
    ] = False,
    dialect: DialectOption = None,
    device: DeviceOption = None,
    python: PythonOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the commands of a config's mode, in order. Nothing is run.

    A step that needs a card which is not here is shown as skipped, with the reason.

    **Examples**

    - `lowbit tipc plan test_tipc/configs/resnet18/train_infer_python.txt lite_train_lite_infer --device cpu`
    - `lowbit tipc plan train_infer_python.txt whole_infer --original`
    """
    from lowbit.tipc import check_mode, original_commands, plan_values, print_plan, read_config

    check_mode(mode)
    if original:
        if device or python:
            raise LowbitError(
                "--original shows what the original runs: it knows neither --device nor --python"
            )
        commands = original_commands(read_config(config, dialect), mode)
        print(json.dumps(commands, indent=2, ensure_ascii=False) if as_json else "\n".join(commands))
        return
    planned = plan_for_this_machine(config, mode, device, python, dialect)
    if as_json:
        print(json.dumps(plan_values(planned), indent=2, ensure_ascii=False))
    else:
        print_plan(planned)


def plan_for_this_machine(
    config: Path, mode: str, device: str | None, python: str | None, dialect: str | None
) -> ChainPlan:
    """The plan with what this machine has; without a `device`, what the config asks for."""
    from lowbit.machine import paddle_build
    from lowbit.tipc import Machine, check_mode, make_plan, read_config

    check_mode(mode)
    if device not in (None, "cpu", "auto"):
        raise LowbitError(
            f'--device is cpu or auto, or left out for what the config asks for, not "{device}"; '
            + did_you_mean(device, ["cpu", "auto"])
        )
    read = read_config(config, dialect)
    cards = 0 if device == "cpu" else paddle_build().cards
    machine = Machine(cards=cards, on_cpu=device == "cpu" or (device == "auto" and cards == 0))
    return make_plan(read, mode, machine=machine, python=python)
