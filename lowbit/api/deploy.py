"""export(): a network becomes files for Paddle Inference and ONNX engines, compared with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn
from safetensors.numpy import load_file, save_file

from lowbit.api.data import Batches, Data, Example, StrPath, example_inputs, input_names
from lowbit.api.result import Result
from lowbit.api.runs import open_model, to_export
from lowbit.config.yaml_file import check_section
from lowbit.deploy.engines import OnnxRuntimeEngine, PaddleEngine
from lowbit.deploy.export import export_model
from lowbit.deploy.model_files import (
    PreProcessSection,
    describe_inference,
    find_model_files,
    read_inference_yml,
    write_inference_yml,
)
from lowbit.deploy.onnx import export_onnx, resolve_target
from lowbit.deploy.paddle_int8.export_int8 import export_paddle_int8
from lowbit.deploy.save_program import ModelInputs, answers_of, save_program
from lowbit.deploy.verify.candidates import INT8_FOLDER, ONNX_FILE
from lowbit.deploy.verify.record import ToExport
from lowbit.errors import LowbitError, did_you_mean
from lowbit.formatting import Section, bytes_text, number, percent, times
from lowbit.nn import eval_mode, fix_inputs, fixed_copy
from lowbit.nn.deployed_form import dynamic_inputs, input_scales, restore_inputs
from lowbit.training.freeze_dynamic_scales import deployable

FORMATS = ("paddle", "onnx", "paddle-int8")
SCALES_FILE = "input_scales.safetensors"
_NAME = "inference"
_BATCHES = 50  # to fix scales on
_EXAMPLES = 4  # random images to compare an exported classifier on


@dataclass(frozen=True)
class ExportedFormat:
    """An exported network in one format, and how close its answers to the example are to the network's."""

    format: str  # "paddle", "onnx" or "paddle-int8"
    engine: str  # the program that it was compared in
    files: tuple[Path, ...]
    size: int  # bytes of all files
    fp32_size: int  # bytes of the same network in fp32
    same_class: float | None  # fraction of the example's samples; None where the answers are no logits [N, C]
    max_difference: float  # of any output
    relative_difference: float  # the same, divided by the largest output
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Export(Result):
    """What `export` wrote."""

    directory: Path
    formats: tuple[ExportedFormat, ...]
    fixed_layers: int  # layers whose input scales were chosen in every call and are fixed now
    notes: tuple[str, ...] = ()
    source: Path | None = None  # the checkpoint

    @property
    def files(self) -> tuple[Path, ...]:
        """All files."""
        return tuple(path for one in self.formats for path in one.files)

    def _sections(self) -> list[Section]:
        rows = tuple(
            (
                one.format,
                bytes_text(one.size),
                times(one.fp32_size / one.size),
                percent(one.same_class),
                number(one.relative_difference),
            )
            for one in self.formats
        )
        columns = ("format", "size", "smaller", "same class", "difference")
        lines = [f"compared in {one.engine}: {one.format}" for one in self.formats]
        if self.fixed_layers:
            lines.append(f"The input scales of {self.fixed_layers} layers, chosen in every call, were fixed.")
        lines += [line for one in self.formats for line in one.notes]
        title = f"Exported {'' if self.source is None else f'{self.source} '}to {self.directory}"
        lines.insert(0, "Same class and difference: of its outputs and the network's, on a few inputs.")
        return [Section(title, columns, rows, (*lines, *self.notes))]


def export(
    net: nn.Layer | StrPath,
    directory: StrPath | None = None,
    *,
    example: Example | None = None,
    data: Data | StrPath | None = None,
    formats: str | Sequence[str] | None = None,
    target: str | None = None,
    classes: Sequence[str] = (),
    transforms: Sequence[Mapping[str, Any]] = (),
) -> Export:
    """Export a network for Paddle Inference and as ONNX, and compare both with it.

    `example` is a batch of inputs, for batches of any size. Networks may have several inputs, and return
    tuples or dicts. Quantized weights are written as integers. A network trained in low precision chooses the
    scales of its inputs in every call, which engines cannot do: they are fixed on batches of `data`
    (training data, prepared as in evaluation; 50 batches are enough). The network itself stays as it is.

    `formats` are `paddle`, `onnx` and `paddle-int8` (networks from images to logits, on processors with
    VNNI); by default the first two. `target` says where the ONNX file will run (`avx2`, `vnni`, `arm`, `gpu`;
    by default this machine). `classes` and `transforms` (PaddleClas' transform_ops) are kept in
    `inference.yml`, for `lowbit infer` and PaddleX.

    Instead of a network, the folder of a run of `lowbit train` is exported into its folder `export`, as
    `lowbit export` does: `lowbit.export("runs/w4a4")`; `data` is then a folder of images, `example`,
    `classes` and `transforms` are known.

    >>> import numpy as np, paddle, lowbit
    >>> net = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), paddle.nn.Flatten(), paddle.nn.Linear(144, 2))
    >>> x = np.random.default_rng(0).standard_normal([8, 3, 8, 8])
    >>> net = lowbit.quantize(net, {"weight_bits": 8}, data=[x])
    >>> made = lowbit.export(net, folder, example=x)
    >>> [one.format for one in made.formats]
    ['paddle', 'onnx']
    """
    if not isinstance(net, nn.Layer):
        if (
            example is not None
            or classes
            or transforms
            or not (data is None or isinstance(data, str | os.PathLike))
        ):
            raise LowbitError("a run knows its example, classes and transforms: give data as a folder only")
        return export_run(net, directory, formats=formats, target=target, data_path=data)
    if directory is None or example is None:
        raise LowbitError("lowbit.export(net, directory, example=x): give the folder and a batch of inputs")
    if data is not None and isinstance(data, str | os.PathLike):
        raise LowbitError("data of a network are batches, such as a paddle.io.DataLoader; got a path")
    directory = Path(directory)
    wanted = _formats(formats) or ["paddle", "onnx"]
    _check_target(target, wanted)
    net = net._layers if isinstance(net, paddle.DataParallel) else net
    tensors = example_inputs(net, example)
    inputs = ModelInputs(input_names(net, len(tensors)), tuple(one.numpy() for one in tensors))
    name = type(net).__name__
    with eval_mode(net):
        own = answers_of(net, inputs.examples, name)
    model, fixed = _deployable(net, data)
    files = ToExport(
        model=model,
        source=None,
        model_name=name,
        image_shape=inputs.examples[0].shape[1:],
        transform_ops=_ops(transforms),
        classes=list(classes),
    )
    writer = _Writer(files, directory, inputs, own, is_classifier(inputs, own))
    made, notes = writer.write_all(wanted, target, strict=formats is not None)
    _keep_scales(net, model, directory / SCALES_FILE)
    return Export(directory=directory, formats=made, fixed_layers=fixed, notes=notes)


def export_classifier(
    files: ToExport, directory: Path, *, formats: str | Sequence[str] | None = None, target: str | None = None
) -> Export:
    """Export a trained classifier of images with what its checkpoint says about it.

    By default a quantized one as `paddle` and `onnx`, others as `paddle`. It is compared on random images.

    export_classifier(to_export(open_checkpoint("runs/w8a8")), Path("runs/w8a8/export"))
    """
    wanted = _formats(formats) or (["paddle", "onnx"] if files.is_quantized else ["paddle"])
    _check_target(target, wanted)
    images = np.random.default_rng(0).standard_normal((_EXAMPLES, *files.image_shape), dtype=np.float32)
    inputs = ModelInputs(input_names(files.model, 1), (images,))
    with eval_mode(files.model):
        own = answers_of(files.model, inputs.examples, files.model_name)
    writer = _Writer(files, directory, inputs, own, classifier=True)
    made, notes = writer.write_all(wanted, target, strict=formats is not None)
    return Export(directory=directory, formats=made, fixed_layers=0, notes=notes, source=files.source)


def export_run(
    checkpoint: StrPath | None,
    output: StrPath | None = None,
    *,
    formats: str | Sequence[str] | None = None,
    target: str | None = None,
    config: StrPath | None = None,
    override: Sequence[str] = (),
    pretrained: StrPath | None = None,
    data_path: StrPath | None = None,
    trust_code: bool = False,
    quiet: bool = False,
) -> Export:
    """Export a trained model, as `lowbit export` does: a run's, a checkpoint's, or a config's with weights.

    The default `output` is the folder `export` of a run, else the config's `save_inference_dir`. `data_path`
    has training images to fix scales on that the model chooses in every call; by default the config's.

    export_run("runs/w8a8", formats="onnx", target="avx2")
    """
    check_formats(formats, target)
    trained = open_model(checkpoint, config, override, pretrained, trust_code=trust_code)
    images = None if data_path is None else Path(data_path)
    trained = deployable(trained, data_path=images, tell=(lambda _: None) if quiet else print)
    if output is None:
        run = None if checkpoint is None else Path(checkpoint)
        output = run / "export" if run and run.is_dir() else trained.config.Global.save_inference_dir
    return export_classifier(to_export(trained), Path(output), formats=formats, target=target)


def is_classifier(inputs: ModelInputs, answers: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether the network makes logits [N, classes] of float32 images [N, C, H, W]."""
    images = inputs.examples[0]
    return (
        len(inputs.examples) == len(answers) == 1
        and images.ndim == 4
        and images.dtype == np.float32
        and answers[0].ndim == 2
        and len(answers[0]) == len(images)
    )


def exported_form(net: nn.Layer, directory: Path) -> nn.Layer:
    """The network as `export` wrote it: itself, or a copy with the input scales that were fixed."""
    if not dynamic_inputs(net):
        return net
    if not (directory / SCALES_FILE).is_file():
        raise LowbitError(
            f"{directory} holds no {SCALES_FILE}, the scales that export fixes for a network trained in low "
            "precision: export it there first"
        )
    fixed = fixed_copy(net, steps=_BATCHES)
    restore_inputs(net, fixed, load_file(directory / SCALES_FILE))
    return fixed


@dataclass(frozen=True)
class _Writer:
    """Writes one network in one format after the other."""

    files: ToExport
    directory: Path
    inputs: ModelInputs
    own: list[np.ndarray[Any, Any]]  # the answers of the network as it was trained
    classifier: bool

    def write_all(
        self, formats: Sequence[str], target: str | None, *, strict: bool
    ) -> tuple[tuple[ExportedFormat, ...], tuple[str, ...]]:
        """All formats, and notes; unless `strict`, ONNX is left out where it cannot hold the network."""
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
            self._describe_images()  # else the yml is that of the Paddle model beside it
        return tuple(made), tuple(notes)

    def _paddle(self, word: str) -> ExportedFormat:
        model = self.files.model
        folder = self.directory / INT8_FOLDER if word == "paddle-int8" else self.directory
        notes: tuple[str, ...] = ()
        if self.classifier and word == "paddle-int8":
            made = export_paddle_int8(model, folder, **self.files.description)
            notes = (f"{len(made.layers)} layers in int8",)
        elif self.classifier:
            export_model(model, folder, **self.files.description)
        elif word == "paddle-int8":
            raise LowbitError(
                f"paddle-int8 is for networks from images [N, C, H, W] to logits [N, classes], which "
                f"{self.files.model_name} is not: export it as paddle or onnx"
            )
        else:
            (folder / f"{_NAME}.yml").unlink(missing_ok=True)  # an earlier network's
            tensors = [paddle.to_tensor(one) for one in self.inputs.examples]
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
            inputs=None if self.classifier else self.inputs,
            target=target,
            quantized=self.files.is_quantized,
            checkpoint=self.files.digest,
        )
        return self._described("onnx", OnnxRuntimeEngine(path), [path], made.fp32_size, tuple(made.notes))

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
        pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(answers, self.own, strict=True)]
        differences = [float(np.abs(a - b).max(initial=0)) for a, b in pairs]
        largest = [max(float(np.abs(b).max(initial=0)), 1e-30) for _, b in pairs]
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
            max_difference=max(differences),
            relative_difference=max(one / most for one, most in zip(differences, largest, strict=True)),
            notes=tuple(notes) + ((engine.note,) if getattr(engine, "note", None) else ()),
        )


def _deployable(net: nn.Layer, data: Data | None) -> tuple[nn.Layer, int]:
    """The network itself, or a copy whose input scales are fixed; and of how many layers."""
    layers = dynamic_inputs(net)
    if not layers:
        return net, 0
    if data is None:
        raise LowbitError(
            f"{len(layers)} layers choose the scales of their inputs in every call, which engines cannot do. "
            "To fix them, some batches are needed: lowbit.export(net, directory, example=x, data=loader)"
        )
    fixed = fixed_copy(net, steps=_BATCHES)
    fix_inputs(net, fixed, Batches(net, data, limit=_BATCHES).inputs())
    return fixed, len(layers)


def _keep_scales(net: nn.Layer, model: nn.Layer, file: Path) -> None:
    """Fixed scales are kept beside the files, for `verify`."""
    if model is net:
        file.unlink(missing_ok=True)
    else:
        save_file(input_scales(net, model), file)


def check_formats(formats: str | Sequence[str] | None, target: str | None) -> None:
    """An error for a misspelt format or target, before the work begins."""
    _check_target(target, _formats(formats) or ["onnx"])


def _check_target(target: str | None, formats: Sequence[str]) -> None:
    if target is not None:
        resolve_target(target)
        if "onnx" not in formats:
            raise LowbitError("target is about the ONNX file: add it to the formats, or leave target out")


def _formats(formats: str | Sequence[str] | None) -> list[str]:
    """The formats asked for; none where nothing was said."""
    if formats is None:
        return []
    words = [word.strip() for word in formats.split(",")] if isinstance(formats, str) else list(formats)
    for word in words:
        if word not in FORMATS:
            raise LowbitError(f'no format "{word}"; {did_you_mean(word, FORMATS)}')
    if not words:
        raise LowbitError(f"no format given; valid: {', '.join(FORMATS)}")
    return words


def _ops(transforms: Sequence[Mapping[str, Any]]) -> list[Any]:
    section = check_section(PreProcessSection, {"transform_ops": list(transforms)}, {}, "transforms")
    return list(section.transform_ops)
