"""The inference steps: the grid of a layout's settings, and the mode `whole_infer`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from lowbit.tipc.config import ChainConfig, Inference
from lowbit.tipc.fields import (
    DeviceChoice,
    Field,
    Words,
    alternatives,
    cpu_word,
    is_absent,
    is_gpu_word,
    is_true,
    option,
    option_with,
    present,
    split_words,
)
from lowbit.tipc.steps import Builder, Step, StepKind

_CPU, _FIRST_CARD = DeviceChoice(()), DeviceChoice((0,))


@dataclass(frozen=True)
class Model:
    """What inference runs on: an exported model, and the images; `device` is that of its training."""

    folder: str
    image: str
    quantized: bool
    device: DeviceChoice = _FIRST_CARD


@dataclass(frozen=True)
class _Variant:
    """One point of the grid: its arguments behind the device, and the name of its log."""

    word: str
    gpu: bool
    before_model: Words
    behind_images: Words
    batch_size: str
    log: str
    tensorrt: bool = False


def add_inference(
    build: Builder, inference: Inference, model: Model, prefix: str, needs: tuple[str, ...]
) -> None:
    """A step for every point of the grid that can run, each with its own log."""
    if inference.script.is_absent:
        return
    script = split_words(inference.script, inference.script.value)
    machine = build.machine
    for variant in _variants(inference, model.quantized):
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
                    *option_with(inference.model_dir, model.folder),
                    *option(inference.batch_size, variant.batch_size),
                    *option(inference.image, model.image),
                    *variant.behind_images,
                ),
                environment=machine.visible(first),
                log=f"{build.output}/{name}.log",
                folder=model.folder,
                image=present(model.image),
                needs=needs,
                skipped="TensorRT needs a card" if on_cpu and variant.tensorrt else machine.why_not(first),
                note="on the CPU" if on_cpu else None,
                quantized=model.quantized,
            ),
            inference.use_gpu,
        )


def _variants(inference: Inference, quantized: bool) -> Iterator[_Variant]:
    for word in alternatives(inference.use_gpu.value) or ("",):
        gpu = bool(word) and is_gpu_word(inference.use_gpu, word)
        if inference.precision is None:
            yield from _batches(inference, word, gpu)
        else:
            yield from (_on_gpu if gpu else _on_cpu)(inference, word, quantized)


def _batches(inference: Inference, word: str, gpu: bool) -> Iterator[_Variant]:
    """Layout 32: batch sizes only."""
    where = "gpu" if gpu else "cpu"
    for size in _each(inference.batch_size):
        log = f"python_infer_{where}_batchsize_{size}"
        yield _Variant(word, gpu, (), option(inference.benchmark), size, log)


def _on_cpu(inference: Inference, word: str, quantized: bool) -> Iterator[_Variant]:
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


def _on_gpu(inference: Inference, word: str, quantized: bool) -> Iterator[_Variant]:
    lists = (inference.tensorrt, inference.precision, inference.batch_size)
    for tensorrt, precision, size in product(*map(_each, lists)):
        if "int8" in precision and not quantized:
            continue
        if tensorrt == "False" and ("fp16" in precision or "int8" in precision):
            continue
        yield _Variant(
            word,
            True,
            (*option(inference.tensorrt, tensorrt), *option(inference.precision, precision)),
            (*option(inference.benchmark), *option(inference.extra)),
            size,
            f"python_infer_gpu_usetrt_{tensorrt}_precision_{precision}_batchsize_{size}",
            tensorrt=tensorrt not in ("False", "null"),
        )


def _each(field: Field | None) -> tuple[str, ...]:
    """The alternatives of a setting; one that is absent is one case, without the argument."""
    return (alternatives(field.value) if field else ()) or ("null",)


def add_whole_infer(build: Builder, config: ChainConfig) -> None:
    """Export of the released models, where there is a command for it, and inference with each."""
    released, image = config.released, config.inference.image.value
    weights = released.weights.require("the model that whole_infer starts from")
    # Layout 32 has one model; in layout 51 each alternative has its own export command and flag.
    models = alternatives(weights) if released.folder is None else (weights,)
    exports = released.export.value.split("|") if released.folder is None else [released.export.value]
    flags = [] if released.quantized is None else alternatives(released.quantized.value)
    for index, model in enumerate(models):
        folder = model
        if released.folder is not None:
            folder = released.folder.require("the folder of the exported model")
        quantized = index < len(flags) and is_true(released.quantized, flags[index])
        command, needs = exports[index].strip() if index < len(exports) else "", ()
        if not is_absent(command):
            needs = (_add_export(build, config, index, command, model, folder, quantized).name,)
        prefix = f"model_{index}" if len(models) > 1 else ""
        add_inference(build, config.inference, Model(folder, image, quantized), prefix, needs)


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
            image=present(config.inference.image.value),
            leaves=folder,
            quantized=quantized,
        ),
        config.released.export,
    )
