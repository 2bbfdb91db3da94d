"""`lowbit tipc prepare`, `run` and `report`: the data of a chain, the chain, and its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.tipc_plan import (
    ConfigArgument,
    DeviceOption,
    DialectOption,
    ModeArgument,
    PythonOption,
    plan_for_this_machine,
)
from lowbit.errors import LowbitError

_HOUR = 3600.0


def prepare(config: ConfigArgument, mode: ModeArgument, dialect: DialectOption = None) -> None:
    """Make or check what a chain needs: data, images, weights. Nothing is downloaded.

    Lite data and a demo image are drawn where the config names files that are not there. Data and weights of
    your own are looked for, and it is an error if they are not there.

    **Example**: `lowbit tipc prepare test_tipc/configs/resnet18/train_infer_python.txt lite_train_lite_infer`
    """
    from lowbit.tipc import check_mode, prepare_chain, read_config

    check_mode(mode)
    for line in prepare_chain(read_config(config, dialect), mode):
        print(line)


def run(
    config: ConfigArgument,
    mode: ModeArgument,
    dialect: DialectOption = None,
    device: DeviceOption = None,
    python: PythonOption = None,
    step_timeout: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="For each step; left out: an hour, but no limit in whole_train_whole_infer.",
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="For all steps together.")
    ] = None,
) -> None:
    """Run a config's chain and judge it: training, evaluation, export, inference.

    Exit code 0: every step that had to run did its work. 1: one did not, or none ran. 130: Ctrl-C.

    **Examples**

    - `lowbit tipc run test_tipc/configs/resnet18/train_infer_python.txt lite_train_lite_infer --device cpu`
    - `lowbit tipc run train_infer_python.txt whole_infer --python python3 --timeout 600`
    """
    from lowbit.tipc import Limits, open_display, print_result, results_folder, run_plan

    planned = plan_for_this_machine(config, mode, device, python, dialect)
    if not planned.steps:
        raise LowbitError(f"{config} has no command for {mode}: all of them are null")
    if device == "auto" and any(step.note for step in planned.steps):
        print("Paddle sees no card here: everything runs on the CPU (--device auto)")
    each = _HOUR if step_timeout is None and mode != "whole_train_whole_infer" else step_timeout
    result = run_plan(planned, limits=Limits(step=each, total=timeout), display=open_display())
    print_result(result)
    print(f"Results: {results_folder(planned.root, planned.output, planned.config)}")
    if not result.passed:
        raise typer.Exit(130 if result.interrupted else 1)


def report(
    config: ConfigArgument,
    mode: ModeArgument,
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json instead of a table.")] = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also copy the JUnit XML to this file.")
    ] = None,
) -> None:
    """Show the results of the last run of a config and mode. Exit code as for `run`.

    **Example**: `lowbit tipc report test_tipc/configs/resnet18/train_infer_python.txt lite_train_lite_infer`
    """
    from lowbit.tipc import (
        check_mode,
        find_root,
        junit_xml,
        output_folder,
        print_result,
        read_config,
        read_result,
        results_folder,
    )

    check_mode(mode)
    output = output_folder(read_config(config), mode)
    result = read_result(results_folder(find_root(config), output, str(config)))
    if as_json:
        print(json.dumps(result.values(), indent=2, ensure_ascii=False))
    else:
        print_result(result)
    if junit is not None:
        try:
            junit.write_text(junit_xml(result), "utf-8")
        except OSError as error:
            raise LowbitError(f"cannot write {junit}: {error.strerror}") from None
    if not result.passed:
        raise typer.Exit(130 if result.interrupted else 1)
