"""The inference steps: the grid of a layout's settings, and the mode `whole_infer`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from lowbit.tipc.config import ChainConfig, InferenceLines
from lowbit.tipc.fields import (
    DeviceChoice,
    Field,
    Words,
    alternatives,
    cpu_word,
    file_behind,
    is_absent,
    is_gpu_word,
    is_true,
    option,
    option_with,
    present,
    shorten,
    split_words,
)
from lowbit.tipc.steps import Builder, Step, StepKind

_CPU, _FIRST_CARD = DeviceChoice(()), DeviceChoice((0,))
_QUANTIZED = "quant_post_static_model"  # the folder that PaddleClas's post_quant writes


@dataclass(frozen=True)
class Model:
    """An exported model and the images to run it on; `device` is the one it was trained on."""

    folder: str
    image: str
    quantized: bool
    device: DeviceChoice = _FIRST_CARD


@dataclass(frozen=True)
class _Variant:
    """One point of the grid: its arguments after the device, and the name of its log."""

    word: str
    gpu: bool
    before_model: Words
    behind_images: Words
    batch_size: str
    log: str
    tensorrt: bool = False


def add_inference(
    build: Builder, config: ChainConfig, model: Model, prefix: str, needs: tuple[str, ...]
) -> None:
    """A step for every point of the grid that can run, each with its own log."""
    inference, dialect = config.inference, config.dialect
    if inference.script.is_absent:
        return
    script = split_words(inference.script, inference.script.value)
    machine = build.machine
    for variant in _variants(config, model.quantized):
        device = (model.device if not model.device.is_cpu else _FIRST_CARD) if variant.gpu else _CPU
        first = DeviceChoice(device.cards[:1])
        on_cpu = machine.on_cpu and variant.gpu
        name = build.unique(f"{prefix}_{variant.log}" if prefix else variant.log)
        build.add(
            Step(
                name=name,
                kind=StepKind.INFER,
                arguments=(
                    *build.python,
                    *script,
                    *option(inference.use_gpu, cpu_word(variant.word) if on_cpu else variant.word),
                    *variant.before_model,
                    *option_with(inference.model_dir, dialect.from_inference(model.folder)),
                    *option(inference.batch_size, variant.batch_size),
                    *option(inference.image, model.image),
                    *variant.behind_images,
                ),
                environment=machine.visible(first),
                log=f"{build.output}/{name}.log",
                folder=model.folder,
                image=present(model.image) and dialect.from_root(model.image),
                needs=needs,
                directory=dialect.inference_folder,
                skipped="TensorRT needs a card" if on_cpu and variant.tensorrt else machine.missing(first),
                note="on the CPU" if on_cpu else None,
                quantized=model.quantized,
            ),
            inference.use_gpu,
        )


def _variants(config: ChainConfig, quantized: bool) -> Iterator[_Variant]:
    inference = config.inference
    for word in alternatives(inference.use_gpu.value) or ("",):
        gpu = bool(word) and is_gpu_word(inference.use_gpu, word)
        if inference.precision is None:
            yield from _batches(inference, word, gpu)
        elif config.dialect.is_paddleclas:
            yield from (_on_gpu_fp16_flag if gpu else _on_cpu_fp32)(inference, word)
        else:
            yield from (_on_gpu if gpu else _on_cpu)(inference, word, quantized)


def _batches(inference: InferenceLines, word: str, gpu: bool) -> Iterator[_Variant]:
    """Layout 32: batch sizes only."""
    where = "gpu" if gpu else "cpu"
    for size in _each(inference.batch_size):
        log = f"python_infer_{where}_batchsize_{size}"
        yield _Variant(word, gpu, (), option(inference.benchmark), size, log)


def _on_cpu(inference: InferenceLines, word: str, quantized: bool) -> Iterator[_Variant]:
    lists = (inference.mkldnn, inference.threads, inference.batch_size, inference.precision)
    for mkldnn, threads, size, precision in product(*map(_each, lists)):
        if (mkldnn == "False" and precision == "fp16") or (quantized and precision != "int8"):
            continue
        yield _Variant(
            word,
            False,
            (*option(inference.mkldnn, mkldnn), *option(inference.threads, threads)),
            (
                *option(inference.benchmark),
                *option(inference.precision, precision),
                *option(inference.extra),
            ),
            size,
            f"python_infer_cpu_usemkldnn_{mkldnn}_threads_{threads}_precision_{precision}_batchsize_{size}",
        )


def _gpu_variant(inference: InferenceLines, word: str, tensorrt: str, precision: str, size: str) -> _Variant:
    return _Variant(
        word,
        True,
        (*option(inference.tensorrt, tensorrt), *option(inference.precision, precision)),
        (*option(inference.benchmark), *option(inference.extra)),
        size,
        f"python_infer_gpu_usetrt_{tensorrt}_precision_{precision}_batchsize_{size}",
        tensorrt=tensorrt not in ("False", "null"),
    )


def _on_gpu(inference: InferenceLines, word: str, quantized: bool) -> Iterator[_Variant]:
    lists = (inference.tensorrt, inference.precision, inference.batch_size)
    for tensorrt, precision, size in product(*map(_each, lists)):
        if "int8" in precision and not quantized:
            continue
        if tensorrt == "False" and ("fp16" in precision or "int8" in precision):
            continue
        yield _gpu_variant(inference, word, tensorrt, precision, size)


def _on_cpu_fp32(inference: InferenceLines, word: str) -> Iterator[_Variant]:
    """PaddleClas on a CPU. Its runner repeats each command for each value of `use_fp16`, which it does not
    pass on there: here it runs once."""
    lists = (inference.mkldnn, inference.threads, inference.batch_size)
    for mkldnn, threads, size in product(*map(_each, lists)):
        yield _Variant(
            word,
            False,
            (*option(inference.mkldnn, mkldnn), *option(inference.threads, threads)),
            (*option(inference.benchmark), *option(inference.extra)),
            size,
            f"python_infer_cpu_usemkldnn_{mkldnn}_threads_{threads}_batchsize_{size}",
        )


def _on_gpu_fp16_flag(inference: InferenceLines, word: str) -> Iterator[_Variant]:
    """PaddleClas on a card: line 46 is a flag, and fp16 needs TensorRT."""
    lists = (inference.tensorrt, inference.precision, inference.batch_size)
    for tensorrt, fp16, size in product(*map(_each, lists)):
        if fp16 == "True" and tensorrt == "False":
            continue
        yield _gpu_variant(inference, word, tensorrt, fp16, size)


def _each(field: Field | None) -> tuple[str, ...]:
    """The alternatives of a setting; an absent one is a single case without the argument."""
    return (alternatives(field.value) if field else ()) or ("null",)


def image_from_root(config: ChainConfig, field: Field) -> str | None:
    """The images of inference, relative to the root; None if the line is absent."""
    image = present(field.value)
    return image and config.dialect.from_root(image)


def local_path(build: Builder, field: Field, value: str | None = None) -> str:
    """A field's value; for a URL, the file that downloading it writes. lowbit downloads nothing."""
    value = field.value if value is None else value
    found = file_behind(value)
    if found is None:
        if "://" in value:
            raise field.error(f'expected a path, or a URL of a file, found "{shorten(value)}"')
        return value
    build.note(field, f"{found} is the file of {shorten(value)}: lowbit downloads nothing")
    return found


def add_whole_infer(build: Builder, config: ChainConfig) -> None:
    """Export the released models, where there is a command for it, and run each."""
    if config.dialect.is_paddleclas and config.layout == 51:
        _add_paddleclas_release(build, config)
        return
    released, image = config.released, config.inference.image.value
    weights = released.weights.require("the model that whole_infer starts from")
    # Layout 32 has one model; in layout 51 each alternative has its own export command and flag.
    models = alternatives(weights) if released.folder is None else (weights,)
    exports = released.export.value.split("|") if released.folder is None else [released.export.value]
    flags = [] if released.quantized is None else alternatives(released.quantized.value)
    for index, value in enumerate(models):
        folder = model = local_path(build, released.weights, value)
        if released.folder is not None:
            folder = released.folder.require("the folder of the exported model")
        flag = released.quantized
        quantized = flag is not None and index < len(flags) and is_true(flag, flags[index])
        command = exports[index].strip() if index < len(exports) else ""
        needs: tuple[str, ...] = ()
        if not is_absent(command):
            needs = (_add_export(build, config, index, command, model, folder, quantized).name,)
        prefix = f"model_{index}" if len(models) > 1 else ""
        add_inference(build, config, Model(folder, image, quantized), prefix, needs)


def _add_paddleclas_release(build: Builder, config: ChainConfig) -> None:
    """Quantization without training where line 34 has a command for it, as in the original; else the export
    of the downloaded weights, which its runner leaves out; else the downloaded model."""
    released, image = config.released, config.inference.image.value
    flag, quantize, into = released.quantized, released.post_quantize, released.folder
    assert flag and quantize and into  # lines that this layout has
    quantized = is_true(flag, flag.value)
    if not quantize.is_absent and quantize.value != "False":
        export = _add_post_quantization(build, config, quantize, into)
        add_inference(build, config, Model(f"{export.folder}/{_QUANTIZED}", image, True), "", (export.name,))
        return
    expected = (
        "what whole_infer starts from, as in pretrained_model_url:https://host/MODEL_pretrained.pdparams"
    )
    released.weights.require(expected)
    weights = local_path(build, released.weights)
    into.require("the folder of the exported model, as in infer_model:../inference")
    folder = config.dialect.from_root(into.value)
    needs: tuple[str, ...] = ()
    if weights.endswith(".pdparams") and not released.export.is_absent:
        # PaddleClas adds the suffix itself.
        stem = weights.removesuffix(".pdparams")
        step = _add_export(build, config, 0, released.export.value, stem, folder, quantized)
        needs = (step.name,)
    elif weights.endswith(".pdparams"):
        raise released.weights.error(
            f"expected an exported model, found the weights {shorten(weights)} and no command that exports "
            f"them: whole_infer needs norm_export on line {released.export.number} and infer_export:True"
        )
    add_inference(build, config, Model(folder, image, quantized), "", needs)


def _add_post_quantization(build: Builder, config: ChainConfig, field: Field, into: Field) -> Step:
    """The step that writes `quant_post_static_model` next to the model it quantizes."""
    words = split_words(field, field.value)
    option_name = "Global.save_inference_dir="
    given = [word.removeprefix(option_name) for word in words if word.startswith(option_name)]
    folder = given[-1] if given else into.require("the folder of the model to quantize")
    folder = posixpath.normpath(folder)
    name = build.unique("post_quantize")
    return build.add(
        Step(
            name=name,
            kind=StepKind.EXPORT,
            arguments=(*build.python, *words),
            environment=build.machine.visible(_CPU) if build.machine.on_cpu else {},
            log=f"{build.output}/{name}.log",
            folder=folder,
            image=present(config.inference.image.value)
            and config.dialect.from_root(config.inference.image.value),
            leaves=f"{folder}/{_QUANTIZED}",
            quantized=True,
            links={f"inference{suffix}": f"model{suffix}" for suffix in (".pdmodel", ".pdiparams", ".json")},
        ),
        field,
    )


def _add_export(
    build: Builder,
    config: ChainConfig,
    index: int,
    command: str,
    weights: str,
    folder: str,
    quantized: bool,
) -> Step:
    name = build.unique(f"export_{index}")
    return build.add(
        Step(
            name=name,
            kind=StepKind.EXPORT,
            arguments=(
                *build.python,
                *split_words(config.released.export, command),
                *option_with(config.export.weights, weights),
                *option_with(config.export.save, folder),
            ),
            environment=build.machine.visible(_CPU) if build.machine.on_cpu else {},
            log=f"{build.output}/{name}.log",
            folder=folder,
            weights=weights,
            image=present(config.inference.image.value)
            and config.dialect.from_root(config.inference.image.value),
            leaves=folder,
            quantized=quantized,
        ),
        config.released.export,
    )
