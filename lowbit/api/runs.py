"""What the commands do, as functions: train, calibrate and quantize runs, and open the models in them.

A run is the folder that `lowbit train` and `lowbit calibrate` write. Every command has its function here or
next to it: `runs.train`, `runs.calibrate`, `runs.quantize`, `evaluation.evaluate`, `evaluation.infer`; and
`lowbit.export`, `lowbit.verify` and `lowbit.analyze` take a run folder instead of a network.

from lowbit.api import runs

folder = runs.train("digits", recipe="qat_w4a4", epochs=2, output_dir="runs/w4a4")
lowbit.export(folder)
print(lowbit.verify(folder))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lowbit.api.data import StrPath
from lowbit.config import load_config, override_config, with_data_path
from lowbit.config.data import AutoDataset, DataSplit, Loading, SamplerSection
from lowbit.config.load import OPTIONS, given_options, parse_override
from lowbit.config.transform_ops import TransformOp
from lowbit.deploy.verify.record import ToExport
from lowbit.errors import LowbitError
from lowbit.training import loop
from lowbit.training.config_check import read_config
from lowbit.training.display import PlainDisplay, open_display
from lowbit.training.finetune import finetune_config
from lowbit.training.post_training import calibrate_run, calibration_config, ptq_recipe
from lowbit.training.trained_model import TrainedModel, open_checkpoint, open_weights

if TYPE_CHECKING:
    from lowbit.api.deploy import Export


def train(
    config: StrPath,
    override: Sequence[str] = (),
    *,
    output_dir: StrPath | None = None,
    epochs: int | None = None,
    device: str | None = None,
    pretrained: StrPath | None = None,
    resume: StrPath | None = None,
    recipe: StrPath | None = None,
    teacher: StrPath | None = None,
    executor: str | None = None,
    finetune_epochs: int | None = None,
    amp_level: str | None = None,
    amp_dtype: str | None = None,
    data_path: StrPath | None = None,
    finetune: bool = False,
    ema: float | None = None,
    early_stop: int | None = None,
    quiet: bool = False,
    silent: bool = False,
    tell: Callable[[str], None] = print,
) -> Path:
    """Train as `lowbit train` does, with the same options; returns the run's folder.

    `config` is the name of a bundled config or a file; `override` has items such as `Global.epochs=2`. With
    `quiet` nothing is shown but the last lines, with `silent` nothing at all.

    runs.train("digits", ["Global.seed=1"], recipe="qt_w4a4g4", epochs=5)
    """
    arguments = locals()
    options = given_options(**{name: value for name, value in arguments.items() if name in OPTIONS})
    settings = read_config(config, override, options)
    if data_path is not None:
        settings = with_data_path(settings, Path(data_path))
    named = {parse_override(item)[0] for item in override} | {name for name, _ in options.values()}
    if finetune:
        settings, lines = finetune_config(settings, named)
        if not (quiet or silent):
            tell("\n".join(lines))
    return loop.train(settings, insist_on_device="Global.device" in named, quiet=quiet, silent=silent)


def calibrate(
    config: StrPath,
    override: Sequence[str] = (),
    *,
    pretrained: StrPath | None = None,
    recipe: StrPath | dict[str, Any] | None = None,
    data_path: StrPath | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    output_dir: StrPath | None = None,
    device: str | None = None,
    quiet: bool = False,
    silent: bool = False,
) -> Path:
    """Quantize a trained model without training it, as `lowbit calibrate` does; returns the run's folder.

    `pretrained` are the weights; `recipe` is a name, a file, or its values; `data_path` has the images to
    calibrate on (by default the config's training images), `steps` batches of `batch_size`.

    runs.calibrate("digits", pretrained="runs/fp32/checkpoints/best.pdparams", recipe="ptq_w8a8")
    """
    options = given_options(output_dir=output_dir, device=device, pretrained=pretrained, recipe=recipe)
    settings = read_config(config, override, options)
    named = [parse_override(item)[0] for item in override]
    images = None if data_path is None else Path(data_path)
    return calibrate_run(
        calibration_config(settings, data_path=images, steps=steps, batch_size=batch_size),
        insist_on_device=device is not None or "Global.device" in named,
        quiet=quiet,
        silent=silent,
    )


def quantize(
    config: StrPath,
    override: Sequence[str] = (),
    *,
    algo: str | None = None,
    recipe: StrPath | None = None,
    formats: str | Sequence[str] | None = None,
    form: str | None = None,
    target: str | None = None,
    latency: bool = True,
    quiet: bool = False,
    silent: bool = False,
    **calibration: Any,
) -> Export:
    """Calibrate a trained model and export it, as `lowbit quantize` does.

    `algo` is the observer of the 8-bit recipe, which `recipe` replaces; `calibration` are the other arguments
    of `calibrate`. The run's folder is the parent of the result's `directory`.

    runs.quantize("digits", pretrained="runs/fp32/checkpoints/best.pdparams", output_dir="runs/ptq")
    """
    from lowbit.api.deploy import check_formats, export_run
    from lowbit.deploy.onnx import resolve_target

    if algo is not None and recipe is not None:
        raise LowbitError("--algo chooses the observer of the 8-bit recipe: leave it out with --recipe")
    check_formats(formats, target, form)  # before the work begins
    # Products of 8-bit weights saturate without VNNI, or are slow where they do not.
    default = ptq_recipe(algo, weight_bits=7 if resolve_target(target) == "avx2" else 8)
    chosen = default if recipe is None else recipe
    folder = calibrate(config, override, recipe=chosen, quiet=quiet, silent=silent, **calibration)
    # The config has named the model.
    return export_run(
        folder,
        formats=formats,
        form=form,
        target=target,
        latency=latency,
        trust_code=True,
        quiet=quiet or silent,
    )


def open_model(
    checkpoint: StrPath | None,
    config: StrPath | None = None,
    override: Sequence[str] = (),
    pretrained: StrPath | None = None,
    *,
    trust_code: bool = False,
) -> TrainedModel:
    """A checkpoint's model, or a config's with the weights given; a config replaces the checkpoint's own.

    The code of a network that only the checkpoint names is imported with `trust_code` alone; a config, or
    `Arch.name=…` in `override`, names it, too.
    """
    if (checkpoint is None) == (pretrained is None):
        raise LowbitError("give either a checkpoint (or run folder), or -c CONFIG with --pretrained WEIGHTS")
    if pretrained is not None:
        if config is None:
            raise LowbitError("--pretrained needs -c CONFIG, which names the model")
        return open_weights(load_config(config, override), Path(pretrained))
    assert checkpoint is not None
    if config is not None:
        return open_checkpoint(Path(checkpoint), load_config(config, override))
    named = dict(parse_override(item) for item in override).get("Arch.name")
    trained = open_checkpoint(Path(checkpoint), trust=trust_code or str(named))
    if override:
        changed = override_config(trained.config, override)
        if changed.Arch != trained.config.Arch:
            raise LowbitError(f"{trained.source} brings its own Arch; leave out the overrides of it")
        trained.config = changed
    return trained


def to_export(
    trained: TrainedModel,
    *,
    image_shape: tuple[int, int, int] | None = None,
    transform_ops: list[TransformOp] | None = None,
) -> ToExport:
    """What export and verify need to know about a model; a shape and operations replace its config's."""
    return ToExport(
        model=trained.model,
        source=trained.source if trained.source.is_file() else None,  # weights may be given without an ending
        model_name=trained.config.Arch.name,
        image_shape=image_shape or trained.config.Global.image_shape,
        transform_ops=transform_ops or trained.preprocessing,
        classes=trained.classes,
    )


def validation_images(trained: TrainedModel, data_path: StrPath | None = None) -> DataSplit:
    """The section of the validation images: those of a path, or of the model's config."""
    split = trained.config.DataLoader.Eval
    if data_path is not None:
        split = images_at(data_path, trained.preprocessing)
    if split is None:
        raise LowbitError(
            f"the config of {trained.source} has no DataLoader.Eval section: give validation images with "
            "--data-path"
        )
    return split


def images_at(
    path: StrPath,
    ops: list[TransformOp],
    *,
    part: Literal["train", "val"] = "val",
    batch_size: int | None = None,
) -> DataSplit:
    """Images of any layout as a config section describes them."""
    dataset = AutoDataset(name="AutoDataset", path=str(path), split=part, transform_ops=ops)
    sampler = SamplerSection(batch_size=batch_size or 64, shuffle=part == "train")
    return DataSplit(dataset=dataset, sampler=sampler, loader=Loading(num_workers=2))


def open_progress(*, quiet: bool) -> PlainDisplay:
    """The display of progress that fits where the output goes, or a silent one."""
    return PlainDisplay(silent=True) if quiet else open_display()
