"""`lowbit tipc`: plan, prepare, run and report a chain test, and write one for a repository."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowbit.errors import LowbitError, did_you_mean

if TYPE_CHECKING:
    from lowbit.tipc import ChainPlan

app = typer.Typer(help="The chain test of Paddle's model repositories (`test_tipc`).", no_args_is_help=True)

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
        help="`cpu`: everything on the CPU; `auto`: the same where there is no card; default: what the "
        "config asks for."
    ),
]
DialectOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="`generic` or `paddleclas`: whose runner the config is for. Default: detected from its keys.",
    ),
]
PythonOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The interpreter, instead of the config's.")
]


@app.command()
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

    Steps for missing GPUs are shown as skipped, with the reason.

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


_HOUR = 3600.0


@app.command()
def prepare(config: ConfigArgument, mode: ModeArgument, dialect: DialectOption = None) -> None:
    """Prepare or check the data, images and weights of a chain. Nothing is downloaded.

    Missing lite data is unpacked from your own `lite_data.tar` (in the repository's root or `test_images/`),
    or generated, as is a missing demo image. Missing full data sets or weights are an error.

    **Example**: `lowbit tipc prepare test_tipc/configs/resnet18/train_infer_python.txt lite_train_lite_infer`
    """
    from lowbit.tipc import check_mode, prepare_chain, read_config

    check_mode(mode)
    for line in prepare_chain(read_config(config, dialect), mode):
        print(line)


@app.command()
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
            help="For each step; default: an hour, but no limit in whole_train_whole_infer.",
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="For all steps together.")
    ] = None,
) -> None:
    """Run a config's chain and check it: training, evaluation, export, inference.

    Exit code 0: all steps passed. 1: a step failed, or none ran. 130: Ctrl-C.

    **Examples**

    - `lowbit tipc run test_tipc/configs/resnet18/train_infer_python.txt lite_train_lite_infer --device cpu`
    - `lowbit tipc run train_infer_python.txt whole_infer --python python3 --timeout 600`
    """
    from lowbit.tipc import ChainLimits, open_display, print_result, results_folder, run_plan

    planned = plan_for_this_machine(config, mode, device, python, dialect)
    if not planned.steps:
        raise LowbitError(f"{config} has no command for {mode}: all of them are null")
    if device == "auto" and any(step.note for step in planned.steps):
        print("Paddle sees no card here: everything runs on the CPU (--device auto)")
    each = _HOUR if step_timeout is None and mode != "whole_train_whole_infer" else step_timeout
    result = run_plan(planned, limits=ChainLimits(step=each, total=timeout), display=open_display())
    print_result(result)
    print(f"Results: {results_folder(planned.root, planned.output, planned.config)}")
    if not result.passed:
        raise typer.Exit(130 if result.interrupted else 1)


@app.command()
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


@app.command()
def init(
    model: Annotated[str, typer.Argument(help="The model's name.", show_default=False)],
    chains: Annotated[
        str | None,
        typer.Option(
            metavar="CHAIN,…",
            help="`norm`, `pact`, `amp`, `qt`, `fleet`, `ptq`, `onnx`, or `all`. Default: `norm`.",
            show_default=False,
        ),
    ] = None,
    train: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Default: `train.py --model=MODEL --lr=0.01`.")
    ] = None,
    evaluate: Annotated[
        str | None,
        typer.Option("--eval", metavar="COMMAND", help="Default: `train.py --test-only --model=MODEL`."),
    ] = None,
    export: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Default: `tools/export_model.py --model=MODEL`.")
    ] = None,
    infer: Annotated[
        str | None, typer.Option(metavar="COMMAND", help="Default: `deploy/inference_python/infer.py`.")
    ] = None,
    data_path: Annotated[str | None, typer.Option(help="Default: `./lite_data`.")] = None,
    image: Annotated[
        str | None, typer.Option(help="What inference is given. Default: `./images/demo.jpg`.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="What training leaves. Default: `latest.pdparams`.")
    ] = None,
    python: Annotated[str, typer.Option(metavar="NAME", help="The interpreter.")] = "python",
    root: Annotated[Path, typer.Option(help="The repository.")] = Path("."),
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; take the defaults.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> None:
    """Write the chain test of a model into a repository: configs, pages, scripts.

    In a terminal it asks for what no option says. The scripts must understand the ecosystem's options, such
    as `--output-dir`; where yours are called otherwise, change the lines of the config.

    **Examples**

    - `lowbit tipc init my_net`
    - `lowbit tipc init my_net --chains norm,pact --train "train.py --net=my_net" --yes`
    """
    from lowbit.tipc.init import Scripts, parse_chains, write_test_tipc

    if not re.fullmatch(r"[\w.+-]+", model):
        raise LowbitError(f'"{model}" becomes the name of a folder: use letters, digits and - _ . + only')
    ask = sys.stdin.isatty() and not yes

    def answer(given: str | None, question: str, default: str) -> str:
        if given is not None or not ask:
            return default if given is None else given
        return typer.prompt(question, default=default)

    wanted = parse_chains(answer(chains, "Chains (norm, pact, amp, qt, fleet, ptq, onnx, or all)", "norm"))
    training = answer(train, "Training command", f"train.py --model={model} --lr=0.01")
    program = training.split(" ")[0]
    scripts = Scripts(
        model=model,
        python=python,
        train=training,
        evaluate=answer(evaluate, "Evaluation command", f"{program} --test-only --model={model}"),
        export=answer(export, "Export command", f"tools/export_model.py --model={model}"),
        infer=answer(infer, "Inference command", "deploy/inference_python/infer.py"),
        data=answer(data_path, "Data", "./lite_data"),
        image=answer(image, "An image, or a folder of images, for inference", "./images/demo.jpg"),
        checkpoint=answer(checkpoint, "What training leaves in its folder", "latest.pdparams"),
    )
    written = write_test_tipc(root / "test_tipc", scripts, wanted, force=force)
    for path in written:
        print(path)
    if not written:
        print("Everything is there already.")
