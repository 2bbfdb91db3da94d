"""`lowbit tipc init`: a `test_tipc` folder for a repository of one's own."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from lowbit.errors import LowbitError


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
