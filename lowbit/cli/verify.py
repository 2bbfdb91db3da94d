"""`lowbit verify`: proves that what is deployed computes what was trained, and measures what it gains."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowbit.cli.evaluate import auto_split
from lowbit.cli.opening import open_model
from lowbit.cli.options import TrustCode
from lowbit.errors import LowbitError
from lowbit.version import __version__

if TYPE_CHECKING:
    from lowbit.data import Loader
    from lowbit.deploy.verify.files import ToExport
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
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compare the trained model with what each engine makes of its export, on the same images.

    Exit code 1 when an engine's answers agree too rarely; the first layer that departs is named. The result
    is kept as `verify.json` in the run folder.

    **Examples**

    - `lowbit verify runs/w8a8`
    - `lowbit verify runs/w8a8 --engines onnxruntime --layers --images 10000`
    """
    from lowbit.cli.verify_tables import print_report
    from lowbit.deploy.onnx import resolve_target
    from lowbit.deploy.verify import (
        compare_sizes,
        export_fp32,
        export_missing,
        installed_engines,
        open_candidates,
        parse_engines,
        report_values,
    )
    from lowbit.deploy.verify import verify as measure
    from lowbit.training.checkpoint import find_fp32
    from lowbit.training.deployable import deployable
    from lowbit.training.display import PlainDisplay, open_display
    from lowbit.training.files import write_atomically
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
    display = PlainDisplay(silent=True) if as_json else open_display()
    with display, tempfile.TemporaryDirectory(prefix="lowbit-verify-") as temporary:
        trained = deployable(trained, tell=display.message)
        files, folder = _to_export(trained), run / "export"
        kept = find_fp32(trained.source)
        display.message(f"{trained.source}: {len(loader.dataset)} images")
        for note in (*notes, *export_missing(files, folder, keys, target)):
            display.message(note)
        fp32 = export_fp32(files, Path(temporary), keys) if files.is_quantized else None
        report = measure(
            trained.model,
            open_candidates(keys, folder, fp32, threads=threads),
            loader,
            watch=display,
            baseline=open_checkpoint(kept, trust=trained.trust).model if kept else None,
            limit=limit / 100,
            layers=layers,
            latency=not no_latency,
        )
        sizes = compare_sizes(keys, folder, fp32)
    values = report_values(report, sizes, **_about(run, trained))
    values["predictions"] = report.predictions.to_dict(loader.dataset, loader.sampler.order(0))
    text = json.dumps(values, indent=2, ensure_ascii=False)
    write_atomically(run / "verify.json", lambda file: file.write_text(text + "\n", "utf-8"))
    if as_json:
        print(text)
    else:
        print_report(report, sizes)
        print(f"The figures are in {run / 'verify.json'}")
    if report.failing:
        raise typer.Exit(1)


def _open_images(trained: TrainedModel, data_path: Path | None, count: int) -> Loader:
    from lowbit.data.spread import SpreadDataset
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


def _to_export(trained: TrainedModel) -> ToExport:
    from lowbit.deploy.verify.files import ToExport

    return ToExport(
        model=trained.model,
        source=trained.source,
        model_name=trained.config.Arch.name,
        image_shape=trained.config.Global.image_shape,
        transform_ops=trained.preprocessing,
        classes=trained.classes,
    )


def _about(run: Path, trained: TrainedModel) -> dict[str, Any]:
    """Which model this is about, and what it was measured with."""
    from importlib.metadata import version

    from lowbit.extras import is_installed
    from lowbit.training.environment import environment_record

    packages = filter(is_installed, ("onnx", "onnxruntime", "openvino"))
    return {
        "lowbit": __version__,
        "run": str(run),
        "checkpoint": trained.source.name,
        "network": trained.config.Arch.name,
        "environment": environment_record() | {name: version(name) for name in packages},
    }
