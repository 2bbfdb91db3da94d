"""export(): a network becomes files for Paddle Inference and ONNX engines, compared with it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from lowbit.api.writer import ExportedFormat, Writer
from lowbit.config.yaml_file import check_section
from lowbit.deploy.gains import FP32_FOLDER, check_form, slower_lines
from lowbit.deploy.model_files import PreProcessSection
from lowbit.deploy.onnx import resolve_target
from lowbit.deploy.save_program import ModelInputs, answers_of
from lowbit.deploy.verify.record import ToExport
from lowbit.errors import LowbitError, did_you_mean
from lowbit.formatting import Section, bytes_text, number, percent, times
from lowbit.nn import eval_mode, fix_inputs, fixed_copy, weights_in_bits
from lowbit.nn.deployed_form import dynamic_inputs, input_scales, restore_inputs
from lowbit.training.freeze_dynamic_scales import deployable

FORMATS = ("paddle", "onnx", "paddle-int8")
SCALES_FILE = "input_scales.safetensors"
_BATCHES = 50  # to fix scales on
_EXAMPLES = 4  # random images to compare an exported classifier on


@dataclass(frozen=True)
class Export(Result):
    """The result of `export`."""

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
        rows: list[tuple[str, ...]] = []
        for one in self.formats:
            for gain in one.engines:
                rows.append(
                    (
                        one.format,
                        gain.engine,
                        bytes_text(one.size),
                        times(one.fp32_size / one.size),
                        percent(gain.same_class),
                        number(gain.ms),
                        times(gain.faster),
                        one.form,
                        number(gain.relative_difference),
                        number(gain.fp32_ms),
                    )
                )
        wide = ("form", "difference", "fp32 ms")
        columns: tuple[str, ...] = (
            "format",
            "engine",
            "size",
            "smaller",
            "same class",
            "ms",
            "faster",
            *wide,
        )
        pairs = [(one.format, gain) for one in self.formats for gain in one.engines]
        if not any(gain.faster is not None for _, gain in pairs):
            left_out = [columns.index(word) for word in ("ms", "faster", "fp32 ms")]
            columns = tuple(word for place, word in enumerate(columns) if place not in left_out)
            rows = [tuple(cell for place, cell in enumerate(row) if place not in left_out) for row in rows]
        names = dict.fromkeys(gain.name for _, gain in pairs)
        lines = [
            "Same class and difference: of its outputs and the network's on a few inputs, compared in "
            f"{', '.join(names)}."
        ]
        if any(gain.faster is not None for _, gain in pairs):
            lines.append("Faster: than fp32 in the same engine, one sample, measured in turns.")
        lines += slower_lines(pairs)
        if self.fixed_layers:
            lines.append(f"The input scales of {self.fixed_layers} layers, chosen in every call, were fixed.")
        lines += [line for one in self.formats for line in one.notes]
        title = f"Exported {'' if self.source is None else f'{self.source} '}to {self.directory}"
        return [Section(title, columns, tuple(rows), (*lines, *self.notes), left=2, wide=wide)]


def export(
    net: nn.Layer | StrPath,
    directory: StrPath | None = None,
    *,
    example: Example | None = None,
    data: Data | StrPath | None = None,
    formats: str | Sequence[str] | None = None,
    form: str | None = None,
    target: str | None = None,
    weight_bits: int | None = None,
    any_size: bool = False,
    classes: Sequence[str] = (),
    transforms: Sequence[Mapping[str, Any]] = (),
    latency: bool = True,
) -> Export:
    """Export a network to Paddle Inference and ONNX, and compare both with the network.

    `example` is a batch of inputs; the exported network accepts batches of any size. Networks may have
    several inputs and return tuples or dicts. Quantized weights are written as integers. Dynamic input scales
    of low-precision training are replaced by fixed ones, computed from batches of `data` (training data,
    preprocessed as in evaluation; 50 batches are enough). The network itself is not changed.

    - `formats`: of `paddle`, `onnx` and `paddle-int8` (image classifiers, on processors with VNNI); default:
      the first two.
    - `form`: `int8` (integers as trained), `simulated` (floats on the trained grids, Paddle only) or `fp32`
      (not quantized, in the subfolder `fp32`); default: `simulated` for Paddle, `int8` for ONNX.
    - `target`: the processor for the ONNX file: `avx2`, `vnni`, `arm` or `gpu`; default: this machine.
    - `weight_bits`: 7 rounds 8-bit weights to 7 bits, which processors without VNNI multiply exactly and
      fast; the result has the agreement with the network.
    - `any_size`: the ONNX file accepts images of any height and width; Paddle's program those of the example.
    - `classes` and `transforms` (PaddleClas's transform_ops) are stored in `inference.yml`, for `lowbit
      infer` and PaddleX.
    - `latency`: measure a quantized network against fp32 in every installed engine, which takes a few
      seconds; Paddle's int8 form is then added if it is faster.

    `net` may also be a run folder, as for the command `lowbit export`: `lowbit.export("runs/w4a4")` writes
    into its subfolder `export`. `data` is then a folder of images; `example`, `classes` and `transforms` are
    known.

    >>> import numpy as np, paddle, lowbit
    >>> net = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), paddle.nn.Flatten(), paddle.nn.Linear(144, 2))
    >>> x = np.random.default_rng(0).standard_normal([8, 3, 8, 8])
    >>> net = lowbit.quantize(net, {"weight_bits": 8}, data=[x])
    >>> made = lowbit.export(net, folder, example=x, latency=False)
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
            raise LowbitError("a run has its own example, classes and transforms: give data as a folder only")
        return export_run(
            net,
            directory,
            formats=formats,
            form=form,
            target=target,
            weight_bits=weight_bits,
            any_size=any_size,
            data_path=data,
            latency=latency,
        )
    if directory is None or example is None:
        raise LowbitError("lowbit.export(net, directory, example=x): give the folder and a batch of inputs")
    if data is not None and isinstance(data, str | os.PathLike):
        raise LowbitError("data of a network are batches, such as a paddle.io.DataLoader; got a path")
    directory = Path(directory)
    wanted = _formats_of_form(form, formats) or ["paddle", "onnx"]
    _check_target(target, wanted)
    _check_any_size(any_size, wanted)
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
    writer = Writer(files, directory, inputs, own, is_classifier(inputs, own), any_size=any_size)
    strict = formats is not None or form is not None or any_size
    if form == "fp32":
        writer = writer.in_fp32(directory / FP32_FOLDER)
    with _weights_in_bits(files, weight_bits) as rounded:
        made, notes = writer.write_all(wanted, target, strict=strict, latency=latency)
    notes = (*notes, *rounded)
    _keep_scales(net, model, directory / SCALES_FILE)
    return Export(directory=writer.directory, formats=made, fixed_layers=fixed, notes=notes)


def export_classifier(
    files: ToExport,
    directory: Path,
    *,
    formats: str | Sequence[str] | None = None,
    form: str | None = None,
    target: str | None = None,
    weight_bits: int | None = None,
    any_size: bool = False,
    latency: bool = False,
) -> Export:
    """Export a trained classifier of images with what its checkpoint says about it.

    By default a quantized one as `paddle` and `onnx`, others as `paddle`. It is compared on random images.

    export_classifier(to_export(open_checkpoint("runs/w8a8")), Path("runs/w8a8/export"))
    """
    wanted = _formats_of_form(form, formats) or (["paddle", "onnx"] if files.is_quantized else ["paddle"])
    _check_target(target, wanted)
    _check_any_size(any_size, wanted)
    images = np.random.default_rng(0).standard_normal((_EXAMPLES, *files.image_shape), dtype=np.float32)
    inputs = ModelInputs(input_names(files.model, 1), (images,))
    with eval_mode(files.model):
        own = answers_of(files.model, inputs.examples, files.model_name)
    writer = Writer(files, directory, inputs, own, classifier=True, any_size=any_size)
    strict = formats is not None or form is not None or any_size
    if form == "fp32":
        writer = writer.in_fp32(directory / FP32_FOLDER)
    with _weights_in_bits(files, weight_bits) as rounded:
        made, notes = writer.write_all(wanted, target, strict=strict, latency=latency)
    notes = (*notes, *rounded)
    return Export(directory=writer.directory, formats=made, fixed_layers=0, notes=notes, source=files.source)


def export_run(
    checkpoint: StrPath | None,
    output: StrPath | None = None,
    *,
    formats: str | Sequence[str] | None = None,
    form: str | None = None,
    target: str | None = None,
    weight_bits: int | None = None,
    any_size: bool = False,
    latency: bool = True,
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
    check_formats(formats, target, form)
    trained = open_model(checkpoint, config, override, pretrained, trust_code=trust_code)
    images = None if data_path is None else Path(data_path)
    trained = deployable(trained, data_path=images, tell=(lambda _: None) if quiet else print)
    if output is None:
        run = None if checkpoint is None else Path(checkpoint)
        output = run / "export" if run and run.is_dir() else trained.config.Global.save_inference_dir
    return export_classifier(
        to_export(trained),
        Path(output),
        formats=formats,
        form=form,
        target=target,
        weight_bits=weight_bits,
        any_size=any_size,
        latency=latency,
    )


@contextmanager
def _weights_in_bits(files: ToExport, bits: int | None) -> Iterator[tuple[str, ...]]:
    """Within it, weights have `bits` bits; gives notes. Comparisons are with the original."""
    if bits is None:
        yield ()
        return
    with weights_in_bits(files.model, bits) as layers:
        if not layers:
            raise LowbitError(
                f"{files.model_name} has no weights of more than {bits} bits: leave weight_bits out"
            )
        what = f"The weights of {layers} layers were rounded to {bits} bits; it was trained with more: "
        yield (what + "compare its accuracy (lowbit verify).",)


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
    """Fixed scales are kept next to the files, for `verify`."""
    if model is net:
        file.unlink(missing_ok=True)
    else:
        save_file(input_scales(net, model), file)


def check_formats(formats: str | Sequence[str] | None, target: str | None, form: str | None = None) -> None:
    """An error for a misspelt format, form or target, before the work begins."""
    _check_target(target, _formats_of_form(form, formats) or ["onnx"])


def _formats_of_form(form: str | None, formats: str | Sequence[str] | None) -> list[str]:
    """The formats that a form is written in, of those asked for; none if nothing was requested."""
    words = _formats(formats)
    check_form(form)
    if form == "int8":
        words = ["paddle-int8" if word == "paddle" else word for word in words or ["paddle", "onnx"]]
    elif form == "simulated":
        if words not in ([], ["paddle"]):
            raise LowbitError("the form simulated is a Paddle program: leave out other formats")
        words = ["paddle"]
    elif form == "fp32" and "paddle-int8" in words:
        raise LowbitError("paddle-int8 is a form in int8: leave it out with the form fp32")
    return words


def _check_target(target: str | None, formats: Sequence[str]) -> None:
    if target is not None:
        resolve_target(target)
        if "onnx" not in formats:
            raise LowbitError("target is about the ONNX file: add it to the formats, or leave target out")


def _check_any_size(any_size: bool, formats: Sequence[str]) -> None:
    if any_size and "onnx" not in formats:
        raise LowbitError("any_size is about the ONNX file: add onnx to the formats, or leave any_size out")


def _formats(formats: str | Sequence[str] | None) -> list[str]:
    """The formats asked for; none if nothing was requested."""
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
