"""Writing a network in each format and form, and measuring what each gains in the engines that read it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from lowbit.deploy.engines import OnnxRuntimeEngine, PaddleEngine
from lowbit.deploy.export import export_model
from lowbit.deploy.gains import EngineGain, differences, measure_gains
from lowbit.deploy.model_files import (
    describe_inference,
    find_model_files,
    read_inference_yml,
    write_inference_yml,
)
from lowbit.deploy.onnx import export_onnx
from lowbit.deploy.paddle_int8.export_int8 import export_paddle_int8
from lowbit.deploy.save_program import ModelInputs, answers_of, save_program
from lowbit.deploy.verify.candidates import INT8_FOLDER, ONNX_FILE
from lowbit.deploy.verify.record import ToExport
from lowbit.errors import LowbitError
from lowbit.nn import quantization_mode

_NAME = "inference"
_COMPARED = 3  # images; not 1 and not 2, so that a batch's size that became a constant shows


@dataclass(frozen=True)
class ExportedFormat:
    """An exported network in one format, and the difference of its outputs from the network's."""

    format: str  # "paddle", "onnx" or "paddle-int8"
    engine: str  # the program that it was compared in
    files: tuple[Path, ...]
    size: int  # bytes of all files
    fp32_size: int  # bytes of the same network in fp32
    same_class: float | None  # fraction of the example's samples; None if the outputs are not logits [N, C]
    max_difference: float  # of any output
    relative_difference: float  # the same, divided by the largest output
    notes: tuple[str, ...] = ()
    form: str = "fp32"  # "int8" (integers as trained), "simulated" (floats on their grids) or "fp32"
    engines: tuple[EngineGain, ...] = ()  # every installed engine that reads it


@dataclass(frozen=True)
class Writer:
    """Writes one network in one format after the other."""

    files: ToExport
    directory: Path
    inputs: ModelInputs
    own: list[np.ndarray[Any, Any]]  # the answers of the network as it was trained
    classifier: bool
    full: bool = False  # nothing is quantized, though the network is
    any_size: bool = False  # the ONNX file takes images of any height and width

    def write_all(
        self, formats: Sequence[str], target: str | None, *, strict: bool, latency: bool = False
    ) -> tuple[tuple[ExportedFormat, ...], tuple[str, ...]]:
        """All formats, and notes; unless `strict`, ONNX is left out where it cannot hold the network.

        With `latency`, every format of a quantized network is measured against fp32 in its engines; unless
        `strict`, Paddle's int8 form is tried, too, and kept where it is right and faster than the simulated
        one.
        """
        made, notes = [], []
        for word in formats:
            try:
                made.append(self._onnx(target) if word == "onnx" else self._paddle(word))
            except LowbitError as error:
                if strict or word == "paddle":
                    raise
                (self.directory / ONNX_FILE).unlink(missing_ok=True)  # an earlier network's
                notes.append(f"No ONNX file: {error}")
        if self.classifier and "onnx" in formats and "paddle" not in formats:
            self._describe_images()  # else the yml is that of the Paddle model next to it
        if not latency or self.full or not self.files.is_quantized:
            return tuple(replace(one, engines=self._measured(one, None, notes)) for one in made), tuple(notes)
        with tempfile.TemporaryDirectory(prefix="lowbit-fp32-") as temporary:
            fp32 = self._to_compare_with(made, Path(temporary), target, notes)
            measured = [replace(one, engines=self._measured(one, fp32, notes)) for one in made]
            if not strict and self.classifier and formats[0] == "paddle" and fp32 is not None:
                measured[1:1] = self._faster_int8(measured[0], fp32, notes)
        return tuple(measured), tuple(notes)

    def _to_compare_with(
        self, made: Sequence[ExportedFormat], folder: Path, target: str | None, notes: list[str]
    ) -> Path | None:
        """The folder with the network in fp32; None where it cannot be written, which a note says."""
        try:
            fp32 = self.in_fp32(folder)
            for word in dict.fromkeys(one.format.removesuffix("-int8") for one in made):
                fp32.write_all([word], target, strict=True)
        except LowbitError as error:
            notes.append(f"No latency: the same network in fp32, to compare with, cannot be written: {error}")
            return None
        return folder

    def in_fp32(self, directory: Path) -> Writer:
        """The same network with nothing quantized, written to another folder."""
        with quantization_mode(self.files.model, "full"):
            own = answers_of(self.files.model, self.inputs.examples, self.files.model_name)
        return replace(self, directory=directory, own=own, full=True)

    def _measured(self, made: ExportedFormat, fp32: Path | None, notes: list[str]) -> tuple[EngineGain, ...]:
        return measure_gains(
            made.format,
            self.directory,
            self.inputs.examples,
            self.own,
            classifier=self.classifier,
            fp32=fp32,
            tell=notes.append,
        )

    def _faster_int8(self, simulated: ExportedFormat, fp32: Path, notes: list[str]) -> list[ExportedFormat]:
        """Paddle's int8 form, where it is right and faster than the simulated one; else none."""
        folder = self.directory / INT8_FOLDER
        try:
            made = self._paddle("paddle-int8")
            made = replace(made, engines=self._measured(made, fp32, notes))
        except LowbitError as error:
            shutil.rmtree(folder, ignore_errors=True)  # an earlier network's
            notes.append(f"No int8 form for Paddle Inference: {error}")
            return []
        if not made.engines or not simulated.engines:  # measuring failed, which the notes say
            shutil.rmtree(folder, ignore_errors=True)
            return []
        (new,), (old,) = made.engines, simulated.engines
        if new.agrees and (new.ms or 0.0) < (old.ms or 0.0):
            return [made]
        shutil.rmtree(folder)
        if not new.agrees:
            reason = f"it gives the network's class to {100 * (new.same_class or 0.0):.4g} % of the samples"
        else:
            reason = f"{new.ms:.3g} ms, the simulated one takes {old.ms:.3g} ms"
        notes.append(f"No int8 form for Paddle: {reason}.")
        return []

    def _computing(self) -> AbstractContextManager[object]:
        """The network, computing as it is written."""
        return quantization_mode(self.files.model, "full") if self.full else nullcontext()

    def _form(self, word: str) -> str:
        if self.full or not self.files.is_quantized:
            return "fp32"
        return "simulated" if word == "paddle" else "int8"

    def _paddle(self, word: str) -> ExportedFormat:
        model = self.files.model
        folder = self.directory / INT8_FOLDER if word == "paddle-int8" else self.directory
        notes: tuple[str, ...] = ()
        if self.classifier and word == "paddle-int8":
            made = export_paddle_int8(model, folder, **self.files.description)
            notes = (f"{len(made.layers)} layers in int8",)
        elif self.classifier:
            with self._computing():
                export_model(model, folder, **self.files.description)
        elif word == "paddle-int8":
            raise LowbitError(
                f"paddle-int8 is for networks from images [N, C, H, W] to logits [N, classes], which "
                f"{self.files.model_name} is not: export it as paddle or onnx"
            )
        else:
            (folder / f"{_NAME}.yml").unlink(missing_ok=True)  # an earlier network's
            tensors = [paddle.to_tensor(one) for one in self.inputs.examples]
            with self._computing():
                save_program(model, str(folder / _NAME), self.inputs.specs(), tensors)
        engine = PaddleEngine(folder)
        program = find_model_files(folder).model.stat().st_size
        weights = program + sum(4 * int(np.prod(one.shape)) for one in model.parameters())
        files = sorted(path for path in folder.glob(f"{_NAME}.*") if path.suffix != ".onnx")
        return self._described(word, engine, files, weights, notes)

    def _onnx(self, target: str | None) -> ExportedFormat:
        path = self.directory / ONNX_FILE
        made = export_onnx(
            self.files.model,
            path,
            model_name=self.files.model_name,
            image_shape=self.files.image_shape if self.classifier else None,
            inputs=self._few_images() if self.classifier else self.inputs,
            target=target,
            quantized=self.files.is_quantized and not self.full,
            checkpoint=self.files.digest,
            any_size=self.any_size,
        )
        return self._described("onnx", OnnxRuntimeEngine(path), [path], made.fp32_size, tuple(made.notes))

    def _few_images(self) -> ModelInputs | None:
        """Some of the example's images, on which rounding is what it will be; None where they are too few."""
        if self.inputs.batch < _COMPARED:
            return None
        return ModelInputs(("x",), tuple(self.inputs.first(_COMPARED)))

    def _describe_images(self) -> None:
        """Write how images are prepared for the ONNX file, unless the yml of a Paddle model there says it."""
        new, path = describe_inference(**self.files.description, sha256={}), self.directory / f"{_NAME}.yml"
        if not path.exists():
            write_inference_yml(path, new)
            return
        old = read_inference_yml(path)
        if (old.ops, old.classes, old.Global.image_shape) != (new.ops, new.classes, new.Global.image_shape):
            (self.directory / ONNX_FILE).unlink(missing_ok=True)
            raise LowbitError(
                f"{path} is of another model, whose images are prepared otherwise: export to another folder, "
                "or both formats, paddle and onnx"
            )

    def _described(
        self, word: str, engine: Any, files: list[Path], fp32_size: int, notes: tuple[str, ...] = ()
    ) -> ExportedFormat:
        answers = engine.run_all(list(self.inputs.examples))
        absolute, relative = differences(answers, self.own)
        same = None
        if self.classifier:
            same = float((answers[0].argmax(axis=1) == self.own[0].argmax(axis=1)).mean())
        return ExportedFormat(
            format=word,
            engine=engine.name,
            files=tuple(files),
            size=sum(path.stat().st_size for path in files),
            fp32_size=fp32_size,
            same_class=same,
            max_difference=absolute,
            relative_difference=relative,
            notes=tuple(notes) + ((engine.note,) if getattr(engine, "note", None) else ()),
            form=self._form(word),
        )
