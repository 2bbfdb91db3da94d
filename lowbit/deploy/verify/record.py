"""verify.json: what is recorded of a comparison, and finding the files that it is about."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paddle import nn

from lowbit.deploy.engines import open_onnx
from lowbit.deploy.export import export_model
from lowbit.deploy.model_files import read_inference_yml, sha256
from lowbit.deploy.onnx import OnnxModel, export_onnx
from lowbit.deploy.paddle_int8.export_int8 import export_paddle_int8
from lowbit.deploy.verify.agreement import Answer, model_answer
from lowbit.deploy.verify.candidates import FORMATS, INT8_FOLDER, ONNX_FILE, Size
from lowbit.deploy.verify.comparison import EngineReport, Report
from lowbit.deploy.verify.evidence import RELATIVE_ERROR
from lowbit.deploy.verify.layer_differences import LayerDifference, OnnxGraph, Steps
from lowbit.nn import has_quantized_layers, quantization_mode


@dataclass(frozen=True, kw_only=True)
class ToExport:
    """A trained model, with what `export_model` and `export_onnx` want to know about it."""

    model: nn.Layer
    source: Path | None  # the checkpoint; None for a model that is in memory only
    model_name: str
    image_shape: tuple[int, int, int]
    transform_ops: list[Any]
    classes: list[str]

    @property
    def digest(self) -> str | None:
        """The SHA-256 of its checkpoint."""
        return None if self.source is None else sha256(self.source)

    @property
    def is_quantized(self) -> bool:
        return has_quantized_layers(self.model)

    @property
    def description(self) -> dict[str, Any]:
        """What is written next to the model: the arguments of `export_model` and of `describe_inference`."""
        return {
            "model_name": self.model_name,
            "image_shape": self.image_shape,
            "transform_ops": self.transform_ops,
            "classes": self.classes,
            "checkpoint": self.digest,
        }


def export_missing(trained: ToExport, folder: Path, engines: Iterable[str], target: str | None) -> list[str]:
    """Export into the folder what the engines need and what is not there as it should be; what was done."""
    notes = []
    formats = {FORMATS[key] for key in engines}
    digest = trained.digest
    if "Paddle" in formats and (why := _stale(folder / "inference.json", trained.source, digest)):
        export_model(trained.model, folder, **trained.description)
        notes.append(f"exported to {folder} for Paddle Inference: {why}")
    int8 = folder / INT8_FOLDER
    if "Paddle int8" in formats and (why := _stale(int8 / "inference.pdmodel", trained.source, digest)):
        export_paddle_int8(trained.model, int8, **trained.description)
        notes.append(f"exported to {int8} for Paddle Inference in int8: {why}")
    if "ONNX" in formats:
        file = folder / ONNX_FILE
        why = _stale(file, trained.source, digest) or _for_another_target(file, target)
        if why:
            made = _export_onnx(trained, file, target, quantized=trained.is_quantized)
            notes.append(f"exported to {file}: {why}")
            notes.extend(made.notes)
    return notes


def export_fp32(trained: ToExport, folder: Path, engines: Iterable[str]) -> Path:
    """The same network with nothing quantized, to compare sizes and speed with; the folder."""
    formats = {FORMATS[key] for key in engines}
    if formats & {"Paddle", "Paddle int8"}:
        with quantization_mode(trained.model, "full"):
            export_model(trained.model, folder, **trained.description)
    if "ONNX" in formats:
        _export_onnx(trained, folder / ONNX_FILE, None, quantized=False)
    return folder


def fp32_answer(
    baseline: nn.Layer, trained: ToExport, folder: Path, engines: Iterable[str], threads: int | None
) -> Answer:
    """The model before quantization as something that answers, where ONNX is asked for in ONNX Runtime.

    That takes a fraction of the model's own time; the export compares both.
    """
    if has_quantized_layers(baseline) or "ONNX" not in {FORMATS[key] for key in engines}:
        return model_answer(baseline)
    file = folder / "baseline.onnx"
    export_onnx(
        baseline,
        file,
        model_name=trained.model_name,
        image_shape=trained.image_shape,
        quantized=False,
    )
    return open_onnx(file, threads=threads).run


def _stale(file: Path, source: Path, digest: str) -> str | None:
    """Why a file has to be made; None where it was exported from this very checkpoint."""
    if not file.is_file():
        return "it was not there"
    if file.name == ONNX_FILE:
        found = OnnxGraph(file).checkpoint
    else:
        yml = file.with_suffix(".yml")
        found = read_inference_yml(yml).Global.checkpoint if yml.is_file() else None
    if found is None:
        return "it did not say which checkpoint it is of"
    return None if found == digest else f"it was of another checkpoint than {source.name}"


def _for_another_target(file: Path, target: str | None) -> str | None:
    if target is None:
        return None
    found = OnnxGraph(file).target
    return None if found in (target, None) else f"it was for {found}, not {target}"


def _export_onnx(trained: ToExport, file: Path, target: str | None, *, quantized: bool) -> OnnxModel:
    return export_onnx(
        trained.model,
        file,
        model_name=trained.model_name,
        image_shape=trained.image_shape,
        target=target,
        quantized=quantized,
        checkpoint=trained.digest,
    )


# A report as plain values, for `verify.json`.


FORMAT = 2


def report_values(report: Report, sizes: list[Size], **about: Any) -> dict[str, Any]:
    """All figures; `about` comes first (which run, which versions). What is not finite becomes null.

    json.dumps(report_values(report, sizes, run="runs/digits"))
    """
    values = {
        "format": FORMAT,
        **about,
        "images": report.model.images,
        "limit": report.limit,
        "passed": not report.failing,
        "evidence": asdict(report.evidence)
        | {
            "conclusive": report.evidence.conclusive,
            "judged_by": report.evidence.judged_by,
            "relative_error_limit": RELATIVE_ERROR,
        },
        "model": asdict(report.model),
        "fp32": None if report.fp32 is None else asdict(report.fp32),
        "integer_reference": _integers(report),
        "engines": [_engine(engine, report) for engine in report.engines],
        "sizes": [asdict(size) | {"ratio": size.ratio} for size in sizes],
    }
    return _finite(values)


def _integers(report: Report) -> dict[str, Any] | None:
    if report.integers is None:
        return None
    return asdict(report.integers) | {
        "integers": report.integers_compared,
        "unequal": report.integers_unequal,
        "first_layer": report.integers_first_layer,
        "integers_images": report.integers_images,
        "by_network": report.model.images if report.by_network is None else report.by_network,
    }


def _engine(engine: EngineReport, report: Report) -> dict[str, Any]:
    layers = None if engine.layers is None else [_layer(row) for row in engine.layers]
    return {
        "engine": engine.key,
        "name": engine.name,
        "threads": engine.threads,
        "note": engine.note,
        **asdict(engine.result),
        "passed": engine not in report.failing,
        "by_chance": engine.result.agreement < report.limit and report.by_chance(engine),
        "verdict": report.verdict(engine),
        "wrong_layers": engine.wrong_layers,
        "layers": layers,
        "latency": [asdict(latency) | {"verdict": latency.verdict()} for latency in engine.latency],
    }


def _layer(row: LayerDifference) -> dict[str, Any]:
    return {
        "layer": row.name,
        "made_by": row.made_by,
        "wrong": row.is_wrong,
        "by_itself": _steps(row.by_itself),
        "altogether": _steps(row.altogether),
    }


def _steps(steps: Steps) -> dict[str, float]:
    return {
        "count": steps.count,
        "differing": steps.differing,
        "more_than_one_step": steps.far,
        "largest": steps.largest,
        "sqnr_db": steps.sqnr,
    }


def _finite(value: Any) -> Any:
    """JSON has no infinities."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
