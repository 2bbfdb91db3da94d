"""`lowbit verify`: compares the exported model with the trained one, and measures size and latency."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import AsJson, Quiet, TrustCode, Wide, show
from lowbit.errors import LowbitError


def verify(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    data_path: Annotated[
        Path | None,
        typer.Option(help="Validation images, instead of the config's: a folder or archive."),
    ] = None,
    images: Annotated[
        int, typer.Option(help="How many images, spread evenly over the validation data.")
    ] = 1000,
    limit: Annotated[
        float, typer.Option(help="Percent of the images on which an engine must give the model's class.")
    ] = 99.0,
    engines: Annotated[
        str | None,
        typer.Option(
            help="Which engines, with commas between them: `paddle`, `onnxruntime`, `openvino`, `lowbit`, "
            "`paddle-int8`; default: the first four, as far as they are installed."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Export again for `avx2`, `vnni`, `arm` or `gpu`; default: use existing files."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of every engine; default: one per core.")
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Compare layer by layer also where the answers agree.")
    ] = False,
    no_latency: Annotated[bool, typer.Option("--no-latency", help="Leave out the speed.")] = False,
    trust_code: TrustCode = False,
    wide: Wide = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare the trained model with what each engine makes of its export, on the same images.

    Exit code 1 when an engine's answers agree too rarely; the first wrong layer is named. The result
    is kept as `verify.json` in the run folder.

    **Examples**

    - `lowbit verify runs/w8a8`
    - `lowbit verify runs/w8a8 --engines onnxruntime --layers --images 10000`
    """
    from lowbit.api.verify import verify_run

    if not 0 <= limit <= 100:
        raise LowbitError(f"--limit is a percentage, from 0 to 100; got {limit:g}")
    found = verify_run(
        run,
        data_path=data_path,
        images=images,
        limit=limit / 100,
        engines=engines,
        target=target,
        threads=threads,
        layers=layers,
        latency=not no_latency,
        trust_code=trust_code,
        quiet=quiet or as_json,
    )
    if as_json:
        print(json.dumps(found.details, indent=2, ensure_ascii=False))
    else:
        show(found, wide=wide)
    if not found.passed:
        raise typer.Exit(1)
