"""`lowbit verify`: proves that what is deployed computes what was trained, and measures what it gains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowbit.cli.evaluate import auto_split
from lowbit.cli.opening import open_model, to_export
from lowbit.cli.options import AsJson, Quiet, TrustCode, Wide, open_progress, show
from lowbit.errors import LowbitError
from lowbit.version import __version__

if TYPE_CHECKING:
    from lowbit.data import Loader
    from lowbit.training.trained_model import TrainedModel


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
            help="Which engines, with commas between them: `paddle`, `onnxruntime`, `openvino`, "
            "`paddle-int8`; left out: the first three, as far as they are installed."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Export anew for `avx2`, `vnni`, `arm` or `gpu`; left out: what is there is used."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of every engine; left out: one per core.")
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

    Exit code 1 when an engine's answers agree too rarely; the first layer that departs is named. The result
    is kept as `verify.json` in the run folder.

    **Examples**

    - `lowbit verify runs/w8a8`
    - `lowbit verify runs/w8a8 --engines onnxruntime --layers --images 10000`
    """
    from lowbit.api.verify import verify_classifier
    from lowbit.deploy.onnx import resolve_target
    from lowbit.deploy.verify import export_missing, installed_engines, parse_engines
    from lowbit.files import write_atomically
    from lowbit.training.checkpoint import find_fp32
    from lowbit.training.freeze_dynamic_scales import deployable
    from lowbit.training.trained_model import open_checkpoint

    keys, notes = installed_engines() if engines is None else (parse_engines(engines), [])
    if not 0 <= limit <= 100:
        raise LowbitError(f"--limit is a percentage, from 0 to 100; got {limit:g}")
    if target is not None:
        resolve_target(target)
    if not run.is_dir():
        raise LowbitError(f"{run} is not a run folder; give the folder that `lowbit train` wrote")
    trained = open_model(run, trust_code=trust_code)
    loader = _open_images(trained, data_path, images)
    with open_progress(quiet=quiet or as_json) as display:
        trained = deployable(trained, tell=display.message)
        files, fp32 = to_export(trained), find_fp32(trained.source)
        display.message(f"{trained.source}: {len(loader.dataset)} images")
        for note in (*notes, *export_missing(files, run / "export", keys, target)):
            display.message(note)
        found = verify_classifier(
            files,
            run / "export",
            keys,
            loader,
            watch=display,
            baseline=open_checkpoint(fp32, trust=trained.trust).model if fp32 else None,
            limit=limit / 100,
            layers=layers,
            latency=not no_latency,
            threads=threads,
            about=_about(run, trained),
        )
    values = found.details | {
        "predictions": found.report.predictions.to_dict(loader.dataset, loader.sampler.order(0))
    }
    text = json.dumps(values, indent=2, ensure_ascii=False)
    write_atomically(run / "verify.json", lambda file: file.write_text(text + "\n", "utf-8"))
    if as_json:
        print(text)
    else:
        show(found, wide=wide)
        if found.fp32_top1 is None and files.is_quantized:
            print("There is no fp32 model beside the run to compare with (checkpoints/fp32.lowbit).")
        print(f"The figures are in {run / 'verify.json'}")
    if not found.passed:
        raise typer.Exit(1)


def _open_images(trained: TrainedModel, data_path: Path | None, count: int) -> Loader:
    from lowbit.data.dataset import SpreadDataset
    from lowbit.training.inputs import build_loader, check_class_count, open_section

    split = trained.config.DataLoader.Eval
    if data_path is not None:
        split = auto_split(data_path, trained.preprocessing)
    if split is None:
        raise LowbitError(
            f"the config of {trained.source} has no DataLoader.Eval section: give validation images with "
            "--data-path"
        )
    dataset = open_section(split.dataset, len(trained.classes), classes=trained.classes)
    check_class_count(dataset, len(trained.classes), "validation")
    return build_loader(split, SpreadDataset(dataset, count), training=False)


def _about(run: Path, trained: TrainedModel) -> dict[str, Any]:
    """Which model this is about, and what it was measured with."""
    from importlib.metadata import version

    from lowbit.extras import is_installed
    from lowbit.training.resume import environment_record

    packages = filter(is_installed, ("onnx", "onnxruntime", "openvino"))
    return {
        "lowbit": __version__,
        "run": str(run),
        "checkpoint": trained.source.name,
        "network": trained.config.Arch.name,
        "environment": environment_record() | {name: version(name) for name in packages},
    }
