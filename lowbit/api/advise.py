"""advise(): which form of a network to deploy in which engine, measured on this machine."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from lowbit.api.data import Batches, Data, StrPath, input_names
from lowbit.api.deploy import is_classifier
from lowbit.api.result import Result
from lowbit.api.runs import open_model, open_progress, to_export
from lowbit.api.verify import LoaderOfBatches, spread_images
from lowbit.api.writer import ExportedFormat, Writer
from lowbit.data.loader import Batch
from lowbit.deploy.engines import Engine
from lowbit.deploy.gains import READ_BY
from lowbit.deploy.save_program import ModelInputs, answers_of
from lowbit.deploy.verify.agreement import Agreement, measure_agreement, model_answer
from lowbit.deploy.verify.candidates import installed_engines, open_engine
from lowbit.deploy.verify.comparison import Images, NoProgressBar, ProgressBar
from lowbit.deploy.verify.latency import time_in_turns
from lowbit.deploy.verify.record import ToExport
from lowbit.errors import LowbitError
from lowbit.files import write_atomically
from lowbit.formatting import Section, bytes_text, number, percent, points, times
from lowbit.nn import eval_mode, has_quantized_layers, is_quantized
from lowbit.training.checkpoint import find_fp32
from lowbit.training.freeze_dynamic_scales import deployable
from lowbit.training.trained_model import open_checkpoint

_LIMIT = 0.99  # of the samples: the class of the network, near-ties apart
_FASTER = 1.03  # times as fast as the fastest fp32: less is not worth quantizing
_DESTROYED = 0.5  # of fp32's top-1
_SECONDS = 6.0  # for all engines and forms together
_ROUNDS = 9
FP32 = "fp32"
_ONLY_CLASSIFIERS = "advise is for networks from images [N, C, H, W] to logits [N, classes]"


@dataclass(frozen=True)
class Option:
    """One form in one engine."""

    engine: str  # "onnxruntime", …
    name: str  # with its version
    format: str  # of the files
    form: str  # "int8", "simulated" or "fp32"
    bits: str  # such as "W8A8"
    size: int  # bytes of the files
    ms: float  # one sample
    faster: float  # than the fastest fp32 form of all engines
    agreement: float | None  # with the network as trained; None for fp32, and without data
    top1: float | None  # None without labels
    exact: bool  # computes what was trained: its class on 99 % of the samples, near-ties apart


@dataclass(frozen=True)
class Advice(Result):
    """The result of `advise`."""

    options: tuple[Option, ...]  # fastest first
    recommendation: str
    samples: int  # that agreement and top-1 are of
    threads: int
    notes: tuple[str, ...] = ()

    def _sections(self) -> list[Section]:
        rows = tuple(
            (
                one.engine,
                one.format,
                one.bits,
                number(one.ms),
                times(one.faster),
                bytes_text(one.size),
                percent(one.top1),
                percent(one.agreement),
                one.form,
            )
            for one in self.options
        )
        wide = ("form",)
        columns = ("engine", "format", "bits", "ms", "faster", "size", "top-1", "agrees", *wide)
        title = f"Engines and forms, one sample, {self.threads} thread{'s' * (self.threads > 1)}"
        lines = ["faster: than the fastest fp32 of all engines, all measured in turns."]
        if self.samples:
            lines.append(f"top-1 and agreement with the network as trained: {self.samples} samples.")
        return [
            Section(title, columns, rows, (*lines, *self.notes), left=3, wide=wide),
            Section("", lines=(f"Recommendation: {self.recommendation}",)),
        ]


def advise(
    net: nn.Layer | StrPath,
    data: Data | StrPath | None = None,
    *,
    baseline: nn.Layer | None = None,
    threads: int | None = None,
) -> Advice:
    """Measure a quantized network in every form and engine, and recommend one.

    The network is exported to a temporary folder. All forms are measured interleaved (a few seconds), and
    their agreement with the network and their accuracy on `data`. The network takes images [N, C, H, W] and
    returns logits [N, classes]. `baseline` is the fp32 network (default: the same weights without
    quantization). `threads` is the number of threads per engine.

    `net` may also be a run folder, as for the command `lowbit advise`: `lowbit.advise("runs/w8a8")`. `data`
    is then a folder of images (default: the run's validation images). `advise_run` has all options.

    >>> import numpy as np, paddle, lowbit
    >>> net = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), paddle.nn.Flatten(), paddle.nn.Linear(144, 2))
    >>> x = np.random.default_rng(0).standard_normal([8, 3, 8, 8])
    >>> net = lowbit.quantize(net, {"weight_bits": 8}, data=[x])
    >>> sorted({one.bits for one in lowbit.advise(net, [x]).options})
    ['W8A8', 'fp32']
    """
    if not isinstance(net, nn.Layer):
        if baseline is not None or not (data is None or isinstance(data, str | os.PathLike)):
            raise LowbitError("a run has its own baseline: give data as a folder of images only")
        return advise_run(net, data_path=data, threads=threads)
    if data is None or isinstance(data, str | os.PathLike):
        raise LowbitError("lowbit.advise(net, data): give batches, such as a paddle.io.DataLoader")
    net = net._layers if isinstance(net, paddle.DataParallel) else net
    batches = Batches(net, data)
    assert batches.first is not None
    if len(batches.first.inputs) != 1 or batches.first.inputs[0].ndim != 4:
        raise LowbitError(_ONLY_CLASSIFIERS)
    images = batches.first.inputs[0].numpy()
    files = ToExport(
        model=net,
        source=None,
        model_name=type(net).__name__,
        image_shape=images.shape[1:],
        transform_ops=[],
        classes=[],
    )
    return advise_classifier(files, LoaderOfBatches(batches), baseline=baseline, threads=threads)


def advise_run(
    run: StrPath,
    *,
    data_path: StrPath | None = None,
    images: int = 200,
    threads: int | None = None,
    trust_code: bool = False,
    quiet: bool = False,
) -> Advice:
    """Measure a run as `lowbit advise` does, and record the result as `advice.json` in its folder.

    advise_run("runs/w8a8", images=1000, threads=1).recommendation
    """
    run = Path(run)
    trained = open_model(run, trust_code=trust_code)
    loader = spread_images(trained, data_path, images)
    with open_progress(quiet=quiet) as display:
        trained = deployable(trained, tell=display.message)
        fp32 = find_fp32(trained.source)
        found = advise_classifier(
            to_export(trained),
            loader,
            baseline=open_checkpoint(fp32, trust=trained.trust).model if fp32 else None,
            threads=threads,
            progress=display,
        )
    if run.is_dir():
        text = json.dumps(found.to_dict(), indent=2, ensure_ascii=False)
        write_atomically(run / "advice.json", lambda file: file.write_text(text + "\n", "utf-8"))
    return found


def advise_classifier(
    files: ToExport,
    images: Images,
    *,
    baseline: nn.Layer | None = None,
    threads: int | None = None,
    progress: ProgressBar | None = None,
) -> Advice:
    """The same for a model with what its checkpoint says about it; `progress` shows the progress."""
    progress, first = progress or NoProgressBar(), next(iter(images.epoch(0)))
    inputs = ModelInputs(input_names(files.model, 1), (first.images[:4],))
    with eval_mode(files.model):
        own = answers_of(files.model, inputs.examples, files.model_name)
    if not is_classifier(inputs, own):
        raise LowbitError(_ONLY_CLASSIFIERS)
    if not has_quantized_layers(files.model):
        raise LowbitError("the network is not quantized: there is nothing to choose; quantize it first")
    with tempfile.TemporaryDirectory(prefix="lowbit-advise-") as temporary:
        folder = Path(temporary)
        writer = Writer(files, folder / "quantized", inputs, own, classifier=True)
        progress.begin("export", 2)
        made, notes = _write_quantized(writer)
        progress.advance()
        plain = _write_fp32(writer, folder / FP32, baseline)
        progress.advance()
        opened = _open(made, writer.directory, threads, notes) | _open(plain, folder / FP32, threads, notes)
        seconds = _time(opened, first.images[:1])
        found = _accuracy(files.model, opened, seconds, images, progress)
    options = _options(opened, seconds, found, _bits(files.model))
    return Advice(
        options=options,
        recommendation=recommend(options),
        samples=next(iter(found.values())).images,
        threads=next(iter(opened.values()))[1].options.threads,
        notes=tuple(notes),
    )


_Opened = dict[tuple[str, str], tuple[ExportedFormat, Engine]]  # by form and engine


def _write_quantized(writer: Writer) -> tuple[list[ExportedFormat], list[str]]:
    made: list[ExportedFormat] = []
    notes: list[str] = []
    for word in ("paddle", "onnx", "paddle-int8"):
        try:
            made += writer.write_all([word], None, strict=True)[0]
        except LowbitError as error:
            notes.append(f"No {word}: {error}")
    if not made:
        raise LowbitError(f"the network cannot be exported in any form: {'; '.join(notes)}")
    return made, notes


def _write_fp32(writer: Writer, folder: Path, baseline: nn.Layer | None) -> list[ExportedFormat]:
    full = writer.in_fp32(folder)
    if baseline is not None:
        with eval_mode(baseline):
            own = answers_of(baseline, writer.inputs.examples, writer.files.model_name)
        files = replace(writer.files, model=baseline, source=None)
        full = replace(writer, files=files, directory=folder, own=own)
    return list(full.write_all(["paddle", "onnx"], None, strict=True)[0])


def _open(made: Sequence[ExportedFormat], folder: Path, threads: int | None, notes: list[str]) -> _Opened:
    opened: _Opened = {}
    for one in made:
        for key in installed_engines(READ_BY[one.format])[0]:
            if (one.form, key) == (FP32, "lowbit"):  # lowbit's runtime is for integers
                continue
            try:
                opened[one.form, key] = one, open_engine(key, folder, threads)
            except LowbitError as error:
                notes.append(f"{key} cannot run {one.format}: {error}")
    return opened


def _time(opened: _Opened, sample: np.ndarray[Any, Any]) -> dict[tuple[str, str], list[float]]:
    sides: dict[str, Callable[[], object]] = {
        "/".join(key): partial(engine.run, sample) for key, (_, engine) in opened.items()
    }
    found = time_in_turns(sides, rounds=_ROUNDS, seconds=_SECONDS)
    return {key: found["/".join(key)] for key in opened}


def _accuracy(
    model: nn.Layer,
    opened: _Opened,
    seconds: dict[tuple[str, str], list[float]],
    images: Images,
    progress: ProgressBar,
) -> dict[tuple[str, str], Agreement]:
    """Of every quantized form; of fp32, which is the same everywhere, in its fastest engine."""
    fastest = min((key for key in opened if key[0] == FP32), key=lambda key: statistics.median(seconds[key]))
    wanted = [key for key in opened if key[0] != FP32 or key == fastest]
    progress.begin("accuracy", len(images))
    batches: Iterable[Batch] = images.epoch(0)
    runs = {"/".join(key): opened[key][1].run for key in wanted}
    _, found = measure_agreement(model_answer(model), runs, batches, on_batch=progress.advance)
    results = {key: found["/".join(key)] for key in wanted}
    return results | {key: results[fastest] for key in opened if key[0] == FP32}


def _options(
    opened: _Opened,
    seconds: dict[tuple[str, str], list[float]],
    found: dict[tuple[str, str], Agreement],
    bits: str,
) -> tuple[Option, ...]:
    plain = {key: times_ for key, times_ in seconds.items() if key[0] == FP32}
    fastest = min(plain.values(), key=statistics.median)
    options = []
    for (form, engine), (made, opened_engine) in opened.items():
        result, own = found[form, engine], seconds[form, engine]
        options.append(
            Option(
                engine=engine,
                name=opened_engine.name,
                format=made.format,
                form=form,
                bits=FP32 if form == FP32 else bits,
                size=made.size,
                ms=1000 * statistics.median(own),
                faster=statistics.median(a / b for a, b in zip(fastest, own, strict=True)),
                agreement=None if form == FP32 else result.agreement,
                top1=result.top1,
                exact=form == FP32 or _is_exact(result),
            )
        )
    return tuple(sorted(options, key=lambda one: one.ms))


def _is_exact(result: Agreement) -> bool:
    if result.agreement >= _LIMIT:
        return True
    ties = result.ties
    near = ties is not None and ties.noise_is_small and ties.accuracy_is_equal
    return near and ties is not None and ties.errors <= (1 - _LIMIT) * result.images


def recommend(options: Sequence[Option]) -> str:
    """One sentence: what to deploy where."""
    fp32 = min((one for one in options if one.form == FP32), key=lambda one: one.ms)
    exact = [one for one in options if one.form != FP32 and one.exact]
    if not exact:
        return (
            "deploy none of the quantized forms, since in no engine they compute what was trained; "
            "`lowbit verify` names the wrong layers."
        )
    best = min(exact, key=lambda one: one.ms)
    change = ""
    if best.top1 is not None and fp32.top1 is not None:
        if best.top1 < _DESTROYED * fp32.top1:
            return (
                f"do not deploy this quantization, which takes top-1 from {percent(fp32.top1)} to "
                f"{percent(best.top1)}: train with it, or use more bits."
            )
        change = f", top-1 {points(best.top1 - fp32.top1)} points"
    smaller = f"{times(_paired_size(best, options) / best.size)} smaller"
    if best.faster >= _FASTER:
        return (
            f"deploy {best.format} ({best.bits}) in {best.name}: {times(best.faster)} as fast as the fastest "
            f"fp32 ({fp32.name}), {smaller}{change}."
        )
    return (
        f"nothing quantized is faster here than fp32 in {fp32.name} ({number(fp32.ms)} ms): deploy "
        f"fp32 (lowbit export --form fp32), or {best.format} ({best.bits}) in {best.name} "
        f"({times(best.faster)}, {smaller}{change}) if size decides."
    )


def _paired_size(option: Option, options: Sequence[Option]) -> int:
    """The size of fp32 in the same format."""
    same = option.format.removesuffix("-int8")
    return next(one.size for one in options if one.form == FP32 and one.format == same)


def _bits(model: nn.Layer) -> str:
    """What most layers are quantized to."""
    words = [
        f"W{layer.weight_quantizer.spec.grid.bits}A{layer.input_quantizer.spec.grid.bits}"
        for layer in model.sublayers(include_self=True)
        if is_quantized(layer)
    ]
    return Counter(words).most_common(1)[0][0]
