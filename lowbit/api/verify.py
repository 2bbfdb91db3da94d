"""verify(): compares an exported network with the original in every engine."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from lowbit.api.data import Batches, Data, StrPath, input_names
from lowbit.api.deploy import exported_form, is_classifier
from lowbit.api.runs import open_model, open_progress, to_export, validation_images
from lowbit.api.verification import Verification, VerifiedEngine, describe_engine
from lowbit.data.dataset import SpreadDataset
from lowbit.data.loader import Batch as ImageBatch
from lowbit.data.loader import Loader
from lowbit.deploy.model_files import MODEL_SUFFIXES
from lowbit.deploy.onnx import resolve_target
from lowbit.deploy.save_program import ModelInputs, answers_of
from lowbit.deploy.verify import (
    compare_sizes,
    export_fp32,
    export_missing,
    open_candidates,
    parse_engines,
    report_values,
)
from lowbit.deploy.verify import verify as verify_images
from lowbit.deploy.verify.agreement import measure_closeness
from lowbit.deploy.verify.candidates import INT8_FOLDER, ONNX_FILE, Candidate, installed_engines
from lowbit.deploy.verify.comparison import Images, ProgressBar
from lowbit.deploy.verify.record import ToExport, fp32_answer
from lowbit.errors import LowbitError
from lowbit.extras import is_installed
from lowbit.files import write_atomically
from lowbit.nn import eval_mode
from lowbit.training.checkpoint import find_fp32
from lowbit.training.freeze_dynamic_scales import deployable
from lowbit.training.inputs import build_loader, check_class_count, open_section
from lowbit.training.resume import environment_record
from lowbit.training.trained_model import TrainedModel, open_checkpoint
from lowbit.version import __version__


def verify(
    net: nn.Layer | StrPath,
    directory: StrPath | None = None,
    data: Data | StrPath | None = None,
    *,
    engines: str | Sequence[str] | None = None,
    limit: float = 0.99,
    layers: bool = False,
    latency: bool = True,
    baseline: nn.Layer | None = None,
    threads: int | None = None,
) -> Verification:
    """Compare an exported network with the original in every engine, on the same data.

    `engines` are of `paddle`, `paddle-int8`, `onnxruntime`, `openvino` and `lowbit`; default: all that are
    installed and have files in `directory`. `limit` is the fraction of samples on which an engine must agree
    with the network. For image classifiers, `layers` compares the layers of all engines, not only of failing
    ones; `latency` measures fp32 and quantized interleaved; `baseline` is the fp32 network, for its accuracy.
    Accuracies are measured if `data` has labels. `threads` is the number of threads per engine.

    `net` may also be a run folder, as for the command `lowbit verify`: `lowbit.verify("runs/w4a4")` exports
    missing files and compares on the run's validation images or those in the folder `data`. `verify_run` has
    all options.

    >>> import numpy as np, paddle, lowbit
    >>> net = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), paddle.nn.Flatten(), paddle.nn.Linear(144, 2))
    >>> x = np.random.default_rng(0).standard_normal([8, 3, 8, 8])
    >>> net = lowbit.quantize(net, {"weight_bits": 8}, data=[x])
    >>> made = lowbit.export(net, folder, example=x, latency=False)
    >>> lowbit.verify(net, folder, [x], engines="onnxruntime", latency=False).passed
    True
    """
    if not 0 <= limit <= 1:
        raise LowbitError(f"the limit is a fraction of the samples, from 0 to 1; got {limit}")
    if not isinstance(net, nn.Layer):
        if (
            directory is not None
            or baseline is not None
            or not (data is None or isinstance(data, str | os.PathLike))
        ):
            raise LowbitError("a run has its export and its baseline: give data as a folder of images only")
        return verify_run(
            net,
            data_path=data,
            limit=limit,
            engines=engines,
            threads=threads,
            layers=layers,
            latency=latency,
        )
    if directory is None or data is None or isinstance(data, str | os.PathLike):
        raise LowbitError(
            "lowbit.verify(net, directory, data): give the folder that was exported to, and data"
        )
    directory = Path(directory)
    net = net._layers if isinstance(net, paddle.DataParallel) else net
    keys, notes = _engines(engines, directory)
    batches = Batches(net, data)
    model = exported_form(net, directory)
    first = batches.first
    assert first is not None
    inputs = ModelInputs(input_names(net, len(first.inputs)), tuple(one.numpy() for one in first.inputs))
    with eval_mode(model):
        classifier = is_classifier(inputs, answers_of(model, inputs.examples, type(net).__name__))
    if not classifier:
        return _verify_outputs(model, directory, keys, batches, limit, threads, notes)
    files = ToExport(
        model=model,
        source=None,
        model_name=type(net).__name__,
        image_shape=inputs.examples[0].shape[1:],
        transform_ops=[],
        classes=[],
    )
    return verify_classifier(
        files,
        directory,
        keys,
        LoaderOfBatches(batches),
        limit=limit,
        layers=layers,
        latency=latency,
        baseline=baseline,
        threads=threads,
        notes=notes,
    )


def verify_run(
    run: StrPath,
    *,
    data_path: StrPath | None = None,
    images: int = 1000,
    limit: float = 0.99,
    engines: str | Sequence[str] | None = None,
    target: str | None = None,
    threads: int | None = None,
    layers: bool = False,
    latency: bool = True,
    trust_code: bool = False,
    quiet: bool = False,
) -> Verification:
    """Verify a run's export as `lowbit verify` does, and record the result as `verify.json` in its folder.

    Files that are missing, of another checkpoint or of another `target` are exported first. `images` are
    evenly spaced in the validation images, those of the config or of `data_path`.

    verify_run("runs/w8a8", engines="onnxruntime", images=10_000).passed
    """
    run = Path(run)
    keys, notes = installed_engines() if engines is None else _engines(engines, run)
    if target is not None:
        resolve_target(target)
    if not run.is_dir():
        raise LowbitError(f"{run} is not a run folder; give the folder that `lowbit train` wrote")
    trained = open_model(run, trust_code=trust_code)
    loader = spread_images(trained, data_path, images)
    assert isinstance(loader.dataset, SpreadDataset)
    about = _about(run, trained)
    about["validation_images"] = loader.dataset.chosen_from if data_path is None else None
    with open_progress(quiet=quiet) as display:
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
            progress=display,
            baseline=open_checkpoint(fp32, trust=trained.trust).model if fp32 else None,
            limit=limit,
            layers=layers,
            latency=latency,
            threads=threads,
            about=about,
        )
    assert found.report is not None
    found.details["predictions"] = found.report.predictions.to_dict(loader.dataset, loader.sampler.order(0))
    text = json.dumps(found.details, indent=2, ensure_ascii=False)
    write_atomically(run / "verify.json", lambda file: file.write_text(text + "\n", "utf-8"))
    closing = [f"The figures are in {run / 'verify.json'}"]
    if found.fp32_top1 is None and files.is_quantized:
        closing.insert(0, "There is no fp32 model of the run to compare with (checkpoints/fp32.lowbit).")
    return replace(found, notes=(*found.notes, *closing))


def spread_images(trained: TrainedModel, data_path: StrPath | None, count: int) -> Loader:
    """Validation images, evenly spaced in those of a path or of the model's config."""
    split = validation_images(trained, data_path)
    dataset = open_section(split.dataset, len(trained.classes), classes=trained.classes)
    check_class_count(dataset, len(trained.classes), "validation")
    return build_loader(split, SpreadDataset(dataset, count), training=False)


def _about(run: Path, trained: TrainedModel) -> dict[str, Any]:
    """Which model this is about, and what it was measured with."""
    packages = filter(is_installed, ("onnx", "onnxruntime", "openvino"))
    return {
        "lowbit": __version__,
        "run": str(run),
        "checkpoint": trained.source.name,
        "network": trained.config.Arch.name,
        "environment": environment_record() | {name: version(name) for name in packages},
    }


def verify_classifier(
    files: ToExport,
    directory: Path,
    engines: Sequence[str],
    images: Images,
    *,
    limit: float = 0.99,
    layers: bool = False,
    latency: bool = True,
    baseline: nn.Layer | None = None,
    threads: int | None = None,
    progress: ProgressBar | None = None,
    notes: Sequence[str] = (),
    about: Mapping[str, Any] | None = None,
) -> Verification:
    """Compare the files in a directory with the model they were exported from, image by image.

    `about` is added to the `details`; `progress` shows the progress.
    """
    with tempfile.TemporaryDirectory(prefix="lowbit-verify-") as temporary:
        fp32 = export_fp32(files, Path(temporary), engines) if files.is_quantized else None
        answer = None
        if baseline is not None:
            answer = fp32_answer(baseline, files, Path(temporary), engines, threads)
        report = verify_images(
            files.model,
            open_candidates(engines, directory, fp32, threads=threads),
            images,
            progress=progress,
            baseline=answer,
            limit=limit,
            layers=layers,
            latency=latency and fp32 is not None,
        )
        sizes = compare_sizes(engines, directory, fp32)
        by_engine = {key: compare_sizes([key], directory, fp32)[0] for key in engines}
    return Verification(
        directory=directory,
        samples=report.model.images,
        limit=limit,
        engines=tuple(describe_engine(engine, report, by_engine[engine.key]) for engine in report.engines),
        top1=report.model.top1,
        fp32_top1=None if report.fp32 is None else report.fp32.top1,
        notes=tuple(notes),
        details=report_values(report, sizes, **(about or {})),
        report=report,
        sizes=tuple(sizes),
    )


def _verify_outputs(
    model: nn.Layer,
    directory: Path,
    keys: list[str],
    batches: Batches,
    limit: float,
    threads: int | None,
    notes: Sequence[str],
) -> Verification:
    """Of networks with any inputs and outputs."""
    candidates: dict[str, Candidate] = {
        one.key: one for one in open_candidates(keys, directory, threads=threads)
    }

    def answers(inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        with eval_mode(model):
            return answers_of(model, inputs, type(model).__name__)

    runs = {key: one.engine.run_all for key, one in candidates.items()}
    arrays = ([one.numpy() for one in inputs] for inputs in batches.inputs())
    results = measure_closeness(answers, runs, arrays)
    found = tuple(
        VerifiedEngine(
            engine=key,
            name=candidates[key].engine.name,
            passed=one.agreement >= limit,
            samples=one.samples,
            agreement=one.agreement,
            top1=None,
            max_difference=one.max_difference,
            mean_difference=one.mean_difference,
            size=compare_sizes([key], directory)[0].exported,
            fp32_size=None,
            note=getattr(candidates[key].engine, "note", None),
        )
        for key, one in results.items()
    )
    samples = next(iter(results.values())).samples
    return Verification(directory, samples, limit, found, top1=None, notes=tuple(notes))


class LoaderOfBatches:
    """Batches of any data as those of a loader of lowbit's own."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return sum(1 for _ in self._batches)

    def epoch(self, _epoch: int, start: int = 0) -> Iterator[ImageBatch]:
        for index, batch in enumerate(self._batches):
            if index >= start:
                yield ImageBatch(batch.inputs[0].numpy(), batch.classes, 1.0)  # type: ignore[arg-type]


def _engines(engines: str | Sequence[str] | None, directory: Path) -> tuple[list[str], list[str]]:
    """The engines to verify, and notes about those that are left out."""
    if engines is not None:
        return parse_engines(engines if isinstance(engines, str) else ",".join(engines)), []
    keys: list[str] = []
    notes: list[str] = []
    if any((directory / f"inference{suffix}").is_file() for suffix in MODEL_SUFFIXES):
        keys.append("paddle")
    if (directory / INT8_FOLDER).is_dir():
        keys.append("paddle-int8")
    if (directory / ONNX_FILE).is_file():
        found, notes = installed_engines(["onnxruntime", "openvino", "lowbit"])
        keys += found
    if not keys:
        raise LowbitError(
            f"{directory} holds no exported network: lowbit.export(net, {str(directory)!r}, example=x) first"
        )
    return keys, notes
