"""Accuracy of runs, checkpoints and exported models, and what exported models make of images.

from lowbit.api import evaluation

print(evaluation.evaluate("runs/w4a4"))
print(evaluation.infer("runs/w4a4/export", ["photo.jpg"], topk=5))
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import paddle
from paddle import Tensor

from lowbit.accel.convolutions import fast_convolutions
from lowbit.api.data import StrPath
from lowbit.api.result import Result
from lowbit.api.runs import images_at, open_model, open_progress, validation_images
from lowbit.config import load_config
from lowbit.config.data import DataSplit
from lowbit.config.transform_ops import CropImage, NormalizeImage, ResizeImage, TransformOp
from lowbit.data import Loader
from lowbit.deploy import (
    Engine,
    InferenceYml,
    PaddleEngine,
    Prediction,
    StageTimer,
    benchmark_report,
    evaluate_engine,
    find_model_files,
    infer_images,
    open_onnx,
    read_inference_yml,
    warm_up,
)
from lowbit.deploy.verify.candidates import ONNX_FILE
from lowbit.errors import LowbitError
from lowbit.formatting import Section
from lowbit.kernels import why_missing
from lowbit.machine import resolve_device
from lowbit.training.display import accuracy_line
from lowbit.training.evaluate import (
    Row,
    comparison_table,
    difference,
    evaluate_in_all_ways,
    rows_as_text,
)
from lowbit.training.evaluate import evaluate as evaluate_batches
from lowbit.training.inputs import build_loader, check_class_count, open_section
from lowbit.training.trained_model import TrainedModel, open_baseline

_BN_BATCHES = 50  # from which batch norm is refreshed for the table

Metrics = dict[str, float]


@dataclass(frozen=True)
class Evaluation(Result):
    """What `evaluate` measured; accuracies are fractions."""

    metrics: Metrics  # loss, top1, …
    quantized: bool = False  # whether the model is a quantized one with its layers, not an exported file
    fp32: Metrics | None = None  # of the model that a quantized one was made of, if its run has kept it
    rows: tuple[Row, ...] = ()  # with `table`

    @property
    def difference(self) -> Metrics | None:
        """Quantized minus fp32."""
        return None if self.fp32 is None else difference(self.fp32, self.metrics)

    def to_dict(self) -> dict[str, Any]:
        """The metrics; of a quantized model also those of `fp32` and the `difference`."""
        values: dict[str, Any] = dict(self.metrics)
        if self.quantized and not self.rows:
            values |= {"fp32": self.fp32}
        if self.fp32 is not None:
            values |= {"difference": self.difference}
        if self.rows:
            values |= {"rows": [asdict(row) for row in self.rows]}
        return values

    def _sections(self) -> list[Section]:
        lines = []
        if self.rows:
            lines += rows_as_text(list(self.rows)).splitlines()
        elif self.fp32 is not None:
            lines += comparison_table(self.fp32, self.metrics).splitlines()
        elif self.quantized:
            lines.append("no fp32 model to compare with: this run was not started from pretrained weights")
        return [Section("", lines=(*lines, accuracy_line(self.metrics)))]


def evaluate(
    model: StrPath | None = None,
    config: StrPath | None = None,
    override: Sequence[str] = (),
    *,
    pretrained: StrPath | None = None,
    data_path: StrPath | None = None,
    batch_size: int | None = None,
    engine: str | None = None,
    device: str | None = None,
    table: bool = False,
    bn_batches: int | None = None,
    trust_code: bool = False,
    quiet: bool = False,
) -> Evaluation:
    """Measure top-1 and top-5 accuracy, as `lowbit eval` does.

    `model` is a run folder, a checkpoint, the folder of an exported model, or an .onnx file; without it, the
    config's model with the weights `pretrained`. A quantized model is compared with the fp32 model that its
    run has kept. With `table` it is measured as quantized, with its weights alone quantized, and in full
    precision, each also with batch norm refreshed on `bn_batches` training batches (0: leave these out).
    `engine` is the one that runs an exported ONNX file: `onnxruntime`, `openvino` or `lowbit`.

    evaluate("runs/w4a4", data_path="photos/")
    """
    if bn_batches is not None and not table:
        raise LowbitError("--bn-batches has no effect without --table")
    path = None if model is None else Path(model)
    if path is not None and _is_exported(path):
        if table:
            raise LowbitError(f"--table is for checkpoints: {path} is exported, and computes in one way only")
        if pretrained is not None:
            raise LowbitError(f"{path} is an exported model with its own weights; omit --pretrained")
        folder = path.parent if path.suffix == ".onnx" else path
        split = _in_batches(_images_of_export(folder, config, override, data_path), batch_size)
        return Evaluation(_evaluate_exported(path, split, engine, device, quiet=quiet))
    if engine is not None:
        raise LowbitError("--engine is for exported models; a checkpoint runs in Paddle")
    trained = open_model(path, config, override, pretrained, trust_code=trust_code)
    split = _in_batches(validation_images(trained, data_path), batch_size)
    if table:
        rows = _table(trained, split, data_path, device, bn_batches, quiet=quiet)
        return Evaluation(rows[0].metrics, trained.quantized, rows=tuple(rows))
    metrics = evaluate_trained(trained, split, device, quiet=quiet)
    baseline = open_baseline(trained)
    fp32 = None if baseline is None else evaluate_trained(baseline, split, device, quiet=quiet)
    return Evaluation(metrics, trained.quantized, fp32)


def evaluate_trained(
    trained: TrainedModel, split: DataSplit, device: str | None, *, quiet: bool = False
) -> Metrics:
    """The accuracy of a trained model on the images of a config section; also for `train.py --test-only`."""
    with _measurement(trained, split, device, quiet=quiet) as measure:
        return measure()


@contextmanager
def _measurement(
    trained: TrainedModel, split: DataSplit, device: str | None, *, quiet: bool
) -> Iterator[Callable[[], Metrics]]:
    """Everything opened that measuring the model takes; each call measures it as it then is."""
    paddle.set_device(resolve_device(device).name)
    dataset = open_section(split.dataset, len(trained.classes), classes=trained.classes)
    check_class_count(dataset, len(trained.classes), "validation")
    loader = build_loader(split, dataset, training=False)
    fast = trained.config.Global.fast_convolutions
    with open_progress(quiet=quiet) as display, fast_convolutions(wanted=fast):
        display.message(f"{trained.source}: {len(dataset)} images")
        yield partial(
            evaluate_batches,
            trained.model,
            loader,
            loss=trained.config.Loss.Eval[0].cross_entropy,
            topk=trained.config.eval_topk,
            display=display,
        )


def _table(
    trained: TrainedModel,
    split: DataSplit,
    data_path: StrPath | None,
    device: str | None,
    bn_batches: int | None,
    *,
    quiet: bool,
) -> list[Row]:
    if not trained.quantized:
        raise LowbitError(f"{trained.source} is not quantized: there is one way only to test it")
    wanted = _BN_BATCHES if bn_batches is None else bn_batches
    loader = _training_images(trained, data_path) if wanted else None
    with _measurement(trained, split, device, quiet=quiet) as measure:
        if loader is not None and not quiet:
            there = min(wanted, len(loader))
            fewer = "" if there == wanted else f" (all there are; {wanted} were asked for)"
            print(f"batch norm refreshed on {there} training batches{fewer}")
        return evaluate_in_all_ways(
            trained.model, measure, None if loader is None else lambda: _batches(loader, wanted)
        )


def _training_images(trained: TrainedModel, data_path: StrPath | None) -> Loader:
    split, hint = trained.config.DataLoader.Train, "or leave these rows out with --bn-batches 0"
    if data_path is not None:
        ops = trained.preprocessing if split is None else split.dataset.transform_ops
        size = None if split is None else split.sampler.batch_size
        split = images_at(data_path, ops, part="train", batch_size=size)
    if split is None:
        raise LowbitError(
            "batch norm is refreshed on training images, and the config has no DataLoader.Train section: "
            f"add it, {hint}"
        )
    try:
        dataset = open_section(split.dataset, len(trained.classes), classes=trained.classes)
    except LowbitError as error:
        raise LowbitError(f"batch norm is refreshed on training images: {error}; fix that, {hint}") from None
    return build_loader(split, dataset, training=True, seed=trained.config.Global.seed)


def _batches(loader: Loader, count: int) -> Iterator[Tensor]:
    return (paddle.to_tensor(batch.images) for batch in islice(loader.epoch(0), count))


def _in_batches(split: DataSplit, batch_size: int | None) -> DataSplit:
    """The section with its batch size replaced where one was given."""
    if batch_size is not None:
        split.sampler.batch_size = batch_size
    return split


def _is_exported(path: Path) -> bool:
    programs = ("inference.json", "inference.pdmodel")
    return path.suffix == ".onnx" or any((path / name).is_file() for name in programs)


def _images_of_export(
    directory: Path, config: StrPath | None, override: Sequence[str], data_path: StrPath | None
) -> DataSplit:
    if data_path is not None:
        if config is not None or override:
            raise LowbitError("--data-path says which images to use, and so do -c and -o; give one of them")
        return images_at(data_path, read_inference_yml(directory / "inference.yml").ops)
    file = config or directory.parent / "config.yaml"  # an export is in its run's folder
    if config is not None or Path(file).is_file():
        split = load_config(file, override).DataLoader.Eval
        if split is not None:
            return split
    raise LowbitError(f"{directory} does not say which images to evaluate on; give --data-path or -c CONFIG")


def _evaluate_exported(
    path: Path, split: DataSplit, engine_name: str | None, device: str | None, *, quiet: bool
) -> Metrics:
    path = _file_for(path, engine_name)
    if path.suffix == ".onnx" and device not in (None, "cpu"):
        raise LowbitError(f"ONNX files are evaluated on the CPU; leave out --device {device}")
    engine, description = _open_exported(path, resolve_device(device).name, engine_name)
    if note := getattr(engine, "note", None):
        print(note, file=sys.stderr)
    dataset = open_section(split.dataset, classes=description.classes if description else None)
    if not quiet:
        print(f"{path}: {len(dataset)} images in {engine.name.rpartition(' ')[0]}")
    return evaluate_engine(engine, build_loader(split, dataset, training=False))


def _has_integers(folder: Path) -> bool:
    """Whether the folder has an ONNX file with quantized layers: operators are stored by their names."""
    file = folder / ONNX_FILE
    return file.is_file() and b"QuantizeLinear" in file.read_bytes()


def _file_for(path: Path, engine: str | None) -> Path:
    """The ONNX file of an export folder, if an engine for it is named."""
    return path / ONNX_FILE if engine not in (None, "paddle") and path.is_dir() else path


def _open_exported(
    path: Path, device: str, engine_name: str | None = None, *, onednn: bool = True
) -> tuple[Engine, InferenceYml | None]:
    """The engine of an exported model, a folder or an .onnx file, and the model's description."""
    if path.suffix == ".onnx":
        yml = path.parent / "inference.yml"
        return open_onnx(path, engine_name), read_inference_yml(yml) if yml.is_file() else None
    engine = PaddleEngine(path, device=device, onednn=onednn)
    return engine, engine.description


@dataclass(frozen=True)
class Inference(Result):
    """What an exported model makes of images."""

    predictions: tuple[Prediction, ...]
    benchmark: tuple[str, ...] = ()  # the lines of AutoLog's report, if it was asked for
    notes: tuple[str, ...] = ()
    ranked: bool = field(default=False, repr=False)  # show all classes of a prediction, not the first only

    def _sections(self) -> list[Section]:
        lines: list[str] = []
        for prediction in self.predictions:
            lines.append(prediction.line())
            lines += prediction.ranking() if self.ranked else []
        return [Section("", lines=(*self.notes, *lines, *self.benchmark))]


def infer(
    model_dir: StrPath,
    images: Sequence[str],
    *,
    topk: int = 1,
    batch_size: int = 1,
    engine: str | None = None,
    device: str | None = None,
    onednn: bool = True,
    resize_size: int | None = None,
    crop_size: int | None = None,
    benchmark: bool = False,
    warmup: int = 0,
) -> Inference:
    """Classify images (files, or folders of them) with an exported model, as `lowbit infer` does.

    `model_dir` is the folder of an exported model, or an ONNX file, which runs on the CPU. Images are
    prepared as when it was exported, unless sizes are given. `engine` is `paddle`, or the one that runs the
    ONNX file, also that of a folder: `onnxruntime`, `openvino` or `lowbit`. Without it, a folder with a
    quantized ONNX file runs in lowbit's runtime, in integers, any other folder in Paddle Inference.

    infer("runs/w4a4/export", ["photo.jpg"], topk=5)
    """
    notes: list[str] = []
    device = resolve_device(device).name
    if engine is None and device == "cpu" and onednn and _has_integers(Path(model_dir)):
        reason = why_missing()
        engine = "lowbit" if reason is None else None
        notes.append(
            f"{ONNX_FILE} in lowbit's runtime, in integers; --engine paddle simulates them in floats"
            if reason is None
            else f"SIMULATED IN FLOATS by Paddle Inference: lowbit's runtime is missing ({reason}); "
            f"--engine onnxruntime runs the integers of {ONNX_FILE}"
        )
    path = _file_for(Path(model_dir), engine)
    if path.suffix != ".onnx" and find_model_files(path).yml is None:
        notes.append(f"{path} has no inference.yml: images are prepared as for ImageNet")
    opened, description = _open_exported(path, device, engine, onednn=onednn)
    notes += [note] if (note := getattr(opened, "note", None)) else []
    ops = _preparation(description, resize_size, crop_size)
    side = next((op.size for op in reversed(ops) if isinstance(op, CropImage)), 224)
    if warmup:
        shape = opened.image_shape or (3, *((side, side) if isinstance(side, int) else side[::-1]))
        warm_up(opened, batch_size=batch_size, runs=warmup, image_shape=shape)
    timer = StageTimer()
    predictions = infer_images(
        opened,
        images,
        ops,
        batch_size=batch_size,
        topk=topk,
        classes=description.classes if description else None,
        timer=timer,
    )
    name = description.Global.model_name if description else path.stem
    report = benchmark_report(timer, opened, model_name=name, batch_size=batch_size) if benchmark else []
    return Inference(tuple(predictions), tuple(report), tuple(notes), ranked=topk > 1)


def _preparation(
    description: InferenceYml | None, resize_size: int | None, crop_size: int | None
) -> list[TransformOp]:
    """As the model was exported, unless sizes were given."""
    exported = description.ops if description else []
    if description is not None and resize_size is None and crop_size is None:
        return exported
    normalize = next((op for op in exported if isinstance(op, NormalizeImage)), NormalizeImage())
    short = next((op.resize_short for op in exported if isinstance(op, ResizeImage)), None)
    crop = next((op.size for op in reversed(exported) if isinstance(op, CropImage)), None)
    return [
        ResizeImage(resize_short=resize_size or short or 256),
        CropImage(size=crop_size or crop or 224),
        normalize,
    ]
