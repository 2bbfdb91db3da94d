"""`lowbit advise`: which form of a quantized run to deploy in which engine, measured here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import AsJson, Quiet, TrustCode, Wide, show


def advise(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    data_path: Annotated[
        Path | None,
        typer.Option(help="Validation images, instead of the config's: a folder or archive."),
    ] = None,
    images: Annotated[
        int, typer.Option(min=1, help="How many images, spread evenly over the validation data.")
    ] = 200,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of every engine; default: one per core.")
    ] = None,
    trust_code: TrustCode = False,
    wide: Wide = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure a quantized model in every form and installed engine, and recommend one.

    Measures accuracy on validation images, latency of one image (interleaved, also for fp32) and size. The
    result is saved as `advice.json` in the run folder, for `lowbit report`.

    **Examples**

    - `lowbit advise runs/w8a8`
    - `lowbit advise runs/w8a8 --threads 1 --images 1000`
    """
    from lowbit.api.advise import advise_run

    found = advise_run(
        run,
        data_path=data_path,
        images=images,
        threads=threads,
        trust_code=trust_code,
        quiet=quiet or as_json,
    )
    if as_json:
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        show(found, wide=wide)
