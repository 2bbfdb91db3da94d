"""The files to verify: those of the run's last export; what is missing or stale is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddle import nn

from lowbit.deploy.export import export_model
from lowbit.deploy.inference_yml import read_inference_yml
from lowbit.deploy.model_files import sha256
from lowbit.deploy.onnx import export_onnx
from lowbit.deploy.paddle_int8.export import export_paddle_int8
from lowbit.deploy.verify.candidates import FORMATS, INT8_FOLDER, ONNX_FILE
from lowbit.deploy.verify.onnx_graph import OnnxGraph
from lowbit.layers import has_quantized_layers, tested_as


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


def export_missing(trained: ToExport, folder: Path, engines: Iterable[str], target: str | None) -> list[str]:
    """Export into the folder what the engines need and what is not there as it should be; what was done."""
    notes = []
    formats = {FORMATS[key] for key in engines}
    digest = trained.digest
    if "Paddle" in formats and (why := _stale(folder / "inference.json", trained.source, digest)):
        _export_paddle(export_model, trained, folder)
        notes.append(f"exported to {folder} for Paddle Inference: {why}")
    int8 = folder / INT8_FOLDER
    if "Paddle int8" in formats and (why := _stale(int8 / "inference.pdmodel", trained.source, digest)):
        _export_paddle(export_paddle_int8, trained, int8)
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
        with tested_as(trained.model, "full"):
            _export_paddle(export_model, trained, folder)
    if "ONNX" in formats:
        _export_onnx(trained, folder / ONNX_FILE, None, quantized=False)
    return folder


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


def _export_paddle(export: Callable[..., object], trained: ToExport, folder: Path) -> None:
    export(
        trained.model,
        folder,
        model_name=trained.model_name,
        image_shape=trained.image_shape,
        transform_ops=trained.transform_ops,
        classes=trained.classes,
        checkpoint=trained.digest,
    )


def _export_onnx(trained: ToExport, file: Path, target: str | None, *, quantized: bool):
    return export_onnx(
        trained.model,
        file,
        model_name=trained.model_name,
        image_shape=trained.image_shape,
        target=target,
        quantized=quantized,
        checkpoint=trained.digest,
    )
