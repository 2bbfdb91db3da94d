"""`lowbit tipc`: the chain test of Paddle's model repositories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lowbit.errors import LowbitError, did_you_mean

app = typer.Typer(help="The chain test of Paddle's model repositories (`test_tipc`).", no_args_is_help=True)


@app.callback()
def _tipc() -> None:
    """The chain test of Paddle's model repositories (`test_tipc`)."""


@app.command("plan")
def plan(
    config: Annotated[
        Path, typer.Argument(help="A config such as `train_infer_python.txt`.", show_default=False)
    ],
    mode: Annotated[
        str,
        typer.Argument(
            help="`lite_train_lite_infer`, `lite_train_whole_infer`, `whole_train_whole_infer` or "
            "`whole_infer`.",
            show_default=False,
        ),
    ],
    original: Annotated[
        bool, typer.Option("--original", help="Show what the original scripts would have run instead.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(help="`cpu` plans everything for the CPU; left out: what the config asks for."),
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="NAME", help="The interpreter, instead of the config's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the commands of a config's mode, in order. Nothing is run.

    A step that needs a card which is not here is shown as skipped, with the reason.

    **Examples**

    - `lowbit tipc plan test_tipc/configs/resnet18/train_infer_python.txt lite_train_lite_infer --device cpu`
    - `lowbit tipc plan train_infer_python.txt whole_infer --original`
    """
    from lowbit.machine import paddle_build
    from lowbit.tipc import (
        Machine,
        check_mode,
        make_plan,
        original_commands,
        plan_values,
        print_plan,
        read_config,
    )

    check_mode(mode)
    if device not in (None, "cpu"):
        raise LowbitError(
            f'--device is cpu, or left out for what the config asks for, not "{device}"; '
            + did_you_mean(device, ["cpu"])
        )
    if original and (device or python):
        raise LowbitError("--original shows what the original runs: it knows neither --device nor --python")
    read = read_config(config)
    if original:
        commands = original_commands(read, mode)
        print(json.dumps(commands, indent=2, ensure_ascii=False) if as_json else "\n".join(commands))
        return
    machine = Machine(on_cpu=True) if device else Machine(cards=paddle_build().cards)
    planned = make_plan(read, mode, machine=machine, python=python)
    if as_json:
        print(json.dumps(plan_values(planned), indent=2, ensure_ascii=False))
    else:
        print_plan(planned)
