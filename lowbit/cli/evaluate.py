"""`lowbit eval`: accuracy of a checkpoint or of an exported model, on the same images."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lowbit.cli.opening import open_model
from lowbit.cli.options import (
    AsJson,
    BatchNormBatches,
    ConfigFile,
    DeviceName,
    Overrides,
    Quiet,
    TrustCode,
    Weights,
    open_progress,
)
from lowbit.config.data import AutoDataset, DataSplit, Loading, Sampler
from lowbit.config.transform_ops import TransformOp
from lowbit.errors import LowbitError

if TYPE_CHECKING:
    from paddle import Tensor

    from lowbit.data import Loader
    from lowbit.training.trained_model import TrainedModel

_BN_BATCHES = 50  # from which batch norm is refreshed for the table


def evaluate(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder, a checkpoint, the folder of an exported model, or an .onnx file.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    override: Overrides = None,
    pretrained: Weights = None,
    data_path: Annotated[
        Path | None,
        typer.Option(help="Validation images: a folder or archive whose layout lowbit recognises."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images at a time; left out: as in the config, else 64.")
    ] = None,
    device: DeviceName = None,
    table: Annotated[
        bool,
        typer.Option(
            "--table",
            help="Test a quantized model as quantized, by its weights alone, and in full precision.",
        ),
    ] = False,
    bn_batches: BatchNormBatches = None,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure top-1 and top-5 accuracy.

    **Examples**

    - `lowbit eval runs/digits`
    - `lowbit eval runs/w4a4` a quantized run: beside the fp32 model that it started from
    - `lowbit eval runs/w4a4 --table` tested as w4a4, w4 and fp, each also with batch norm refreshed
    - `lowbit eval runs/digits/export` evaluates the exported model in Paddle Inference
    - `lowbit eval runs/w8a8/export/inference.onnx` evaluates the file in ONNX Runtime
    - `lowbit eval -c ResNet18.yaml --pretrained ResNet18.pdparams`
    """
    silent = quiet or as_json
    if bn_batches is not None and not table:
        raise LowbitError("--bn-batches has no effect without --table")
    if model is not None and _is_exported(model):
        if table:
            raise LowbitError(
                f"--table is for checkpoints: {model} is exported, and computes in one way only"
            )
        if pretrained is not None:
            raise LowbitError(f"{model} is an exported model with weights of its own; leave out --pretrained")
        folder = model.parent if model.suffix == ".onnx" else model
        split = _images_of_export(folder, config, override, data_path)
        metrics = _evaluate_exported(model, _in_batches(split, batch_size), device, quiet=silent)
    else:
        trained = open_model(model, config, override, pretrained, trust_code=trust_code)
        split = _in_batches(images_of(trained, data_path), batch_size)
        if table:
            show_table(
                trained, split, data_path, device, bn_batches=bn_batches, quiet=silent, as_json=as_json
            )
            return
        metrics = evaluate_trained(trained, split, device, quiet=silent)
        if trained.quantized:
            metrics |= _compare(trained, metrics, split, device, quiet=silent)
    if as_json:
        print(json.dumps(metrics))
    else:
        from lowbit.training.display import accuracy_line

        print(accuracy_line(metrics))


def _compare(
    trained: TrainedModel, metrics: dict[str, float], split: DataSplit, device: str | None, *, quiet: bool
) -> dict[str, dict[str, float] | None]:
    """The fp32 model's figures on the same images, and the difference; shown unless `quiet`."""
    from lowbit.training.evaluate import comparison_table, difference
    from lowbit.training.trained_model import open_baseline

    baseline = open_baseline(trained)
    if baseline is None:
        if not quiet:
            print("no fp32 model to compare with: this run was not started from pretrained weights")
        return {"fp32": None}
    fp32 = evaluate_trained(baseline, split, device, quiet=quiet)
    if not quiet:
        print(comparison_table(fp32, metrics))
    return {"fp32": fp32, "difference": difference(fp32, metrics)}


def evaluate_trained(
    trained: TrainedModel, split: DataSplit | None, device: str | None, *, quiet: bool = False
) -> dict[str, float]:
    """The accuracy of a trained model on the images of a config section; also for `train.py --test-only`."""
    with evaluation(trained, split, device, quiet=quiet) as measure:
        return measure()


@contextmanager
def evaluation(
    trained: TrainedModel, split: DataSplit | None, device: str | None, *, quiet: bool = False
) -> Iterator[Callable[[], dict[str, float]]]:
    """Everything opened that measuring the model takes; each call measures it as it then is."""
    import paddle

    from lowbit.accel.convolutions import fast_convolutions
    from lowbit.machine import resolve_device
    from lowbit.training.evaluate import evaluate as measure
    from lowbit.training.inputs import build_loader, check_class_count, open_section

    if split is None:
        raise LowbitError("the config has no DataLoader.Eval section; give the images with --data-path")
    paddle.set_device(resolve_device(device).name)
    dataset = open_section(split.dataset, len(trained.classes), classes=trained.classes)
    check_class_count(dataset, len(trained.classes), "validation")
    loader = build_loader(split, dataset, training=False)
    fast = trained.config.Global.fast_convolutions
    with open_progress(quiet=quiet) as display, fast_convolutions(wanted=fast):
        display.message(f"{trained.source}: {len(dataset)} images")
        yield partial(
            measure,
            trained.model,
            loader,
            loss=trained.config.Loss.Eval[0].cross_entropy,
            topk=trained.config.eval_topk,
            display=display,
        )


def images_of(trained: TrainedModel, data_path: Path | None) -> DataSplit | None:
    """The validation images: those of a path, or of the model's config."""
    if data_path is None:
        return trained.config.DataLoader.Eval
    return auto_split(data_path, trained.preprocessing)


def _is_exported(path: Path) -> bool:
    programs = ("inference.json", "inference.pdmodel")
    return path.suffix == ".onnx" or any((path / name).is_file() for name in programs)


def _images_of_export(
    directory: Path, config: Path | None, override: list[str] | None, data_path: Path | None
) -> DataSplit:
    from lowbit.config import load_config
    from lowbit.deploy import read_inference_yml

    if data_path is not None:
        if config is not None or override:
            raise LowbitError("--data-path says which images to use, and so do -c and -o; give one of them")
        return auto_split(data_path, read_inference_yml(directory / "inference.yml").ops)
    file = config or directory.parent / "config.yaml"  # an export stands in its run's folder
    if config is not None or file.is_file():
        split = load_config(file, override or ()).DataLoader.Eval
        if split is not None:
            return split
    raise LowbitError(f"{directory} does not say which images to evaluate on; give --data-path or -c CONFIG")


def _evaluate_exported(path: Path, split: DataSplit, device: str | None, *, quiet: bool) -> dict[str, float]:
    from lowbit.deploy import OnnxRuntimeEngine, PaddleEngine, evaluate_engine, read_inference_yml
    from lowbit.machine import resolve_device
    from lowbit.training.inputs import build_loader, open_section

    if path.suffix == ".onnx":
        if device not in (None, "cpu"):
            raise LowbitError(f"ONNX files are evaluated on the CPU; leave out --device {device}")
        engine, note = OnnxRuntimeEngine(path), None
        yml = path.parent / "inference.yml"
        description = read_inference_yml(yml) if yml.is_file() else None
    else:
        engine = PaddleEngine(path, device=resolve_device(device).name)
        note, description = engine.note, engine.description
    dataset = open_section(split.dataset, classes=description.classes if description else None)
    if note:
        print(note, file=sys.stderr)
    if not quiet:
        print(f"{path}: {len(dataset)} images in {engine.name.rpartition(' ')[0]}")
    return evaluate_engine(engine, build_loader(split, dataset, training=False))


def auto_split(
    path: Path,
    ops: list[TransformOp],
    *,
    part: Literal["train", "val"] = "val",
    batch_size: int | None = None,
) -> DataSplit:
    """Images of any layout as a config section describes them."""
    dataset = AutoDataset(name="AutoDataset", path=str(path), split=part, transform_ops=ops)
    sampler = Sampler(batch_size=batch_size or 64, shuffle=part == "train")
    return DataSplit(dataset=dataset, sampler=sampler, loader=Loading(num_workers=2))


def _in_batches(split: DataSplit | None, batch_size: int | None) -> DataSplit | None:
    """The split with its batch size replaced where one was given."""
    if split is not None and batch_size is not None:
        split.sampler.batch_size = batch_size
    return split


def show_table(
    trained: TrainedModel,
    split: DataSplit | None,
    data_path: Path | None,
    device: str | None,
    *,
    bn_batches: int | None,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Prints the table, or its rows as JSON, and the accuracy as quantized in the line that tools parse."""
    from lowbit.training.display import accuracy_line
    from lowbit.training.evaluate import evaluate_in_all_ways, rows_as_text

    if not trained.quantized:
        raise LowbitError(f"{trained.source} is not quantized: there is one way only to test it")
    wanted = _BN_BATCHES if bn_batches is None else bn_batches
    loader = _training_images(trained, data_path) if wanted else None
    with evaluation(trained, split, device, quiet=quiet or as_json) as measure:
        if loader is not None and not (quiet or as_json):
            there = min(wanted, len(loader))
            fewer = "" if there == wanted else f" (all there are; {wanted} were asked for)"
            print(f"batch norm refreshed on {there} training batches{fewer}")
        rows = evaluate_in_all_ways(
            trained.model, measure, None if loader is None else lambda: _batches(loader, wanted)
        )
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print(rows_as_text(rows))
        print(accuracy_line(rows[0].metrics))


def _training_images(trained: TrainedModel, data_path: Path | None) -> Loader:
    from lowbit.training.inputs import build_loader, open_section

    split, hint = trained.config.DataLoader.Train, "or leave these rows out with --bn-batches 0"
    if data_path is not None:
        ops = trained.preprocessing if split is None else split.dataset.transform_ops
        size = None if split is None else split.sampler.batch_size
        split = auto_split(data_path, ops, part="train", batch_size=size)
    if split is None:
        raise LowbitError(
            "batch norm is refreshed on training images, and the config has no DataLoader.Train section: "
            f"add it, {hint}"
        )
    try:
        dataset = open_section(split.dataset, len(trained.classes), classes=trained.classes)
    except LowbitError as error:
        raise LowbitError(f"batch norm is refreshed on training images: {error}; mend that, {hint}") from None
    return build_loader(split, dataset, training=True, seed=trained.config.Global.seed)


def _batches(loader: Loader, count: int) -> Iterator[Tensor]:
    import paddle

    return (paddle.to_tensor(batch.images) for batch in islice(loader.epoch(0), count))
