"""`lowbit advise`: which form of a quantized run to deploy in which engine, measured here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.opening import open_model, to_export
from lowbit.cli.options import AsJson, Quiet, TrustCode, Wide, open_progress, show
from lowbit.cli.verify import open_images


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
        int | None, typer.Option(min=1, help="Threads of every engine; left out: one per core.")
    ] = None,
    trust_code: TrustCode = False,
    wide: Wide = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure a quantized model in every form and installed engine, and recommend one.

    Accuracy on validation images, latency of one image (all forms in turns, fp32 among them) and size. The
    result is kept as `advice.json` in the run folder, for `lowbit report`.

    **Examples**

    - `lowbit advise runs/w8a8`
    - `lowbit advise runs/w8a8 --threads 1 --images 1000`
    """
    from lowbit.api.advise import advise_classifier
    from lowbit.files import write_atomically
    from lowbit.training.checkpoint import find_fp32
    from lowbit.training.freeze_dynamic_scales import deployable
    from lowbit.training.trained_model import open_checkpoint

    trained = open_model(run, trust_code=trust_code)
    loader = open_images(trained, data_path, images)
    with open_progress(quiet=quiet or as_json) as display:
        trained = deployable(trained, tell=display.message)
        fp32 = find_fp32(trained.source)
        found = advise_classifier(
            to_export(trained),
            loader,
            baseline=open_checkpoint(fp32, trust=trained.trust).model if fp32 else None,
            threads=threads,
            watch=display,
        )
    text = json.dumps(found.to_dict(), indent=2, ensure_ascii=False)
    if run.is_dir():
        write_atomically(run / "advice.json", lambda file: file.write_text(text + "\n", "utf-8"))
    if as_json:
        print(text)
    else:
        show(found, wide=wide)
