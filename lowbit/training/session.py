"""Everything a training loop needs, built from a config: model, optimizer, precision, loaders."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import paddle

from lowbit.accel import bf16_products
from lowbit.accel.convolutions import convolution_library
from lowbit.accel.norm_ops import norm_library
from lowbit.accel.process_settings import apply_amd_fix, keep_freed_memory
from lowbit.config import Config
from lowbit.config.schema import AmpSection
from lowbit.data import Loader
from lowbit.errors import LowbitError
from lowbit.kernels import why_missing
from lowbit.machine import resolve_device
from lowbit.models import (
    assign_weights,
    build_model,
    find_pretrained,
    not_finite,
    read_weights,
    without_quantizers,
)
from lowbit.nn import convert_sync_batch_norm
from lowbit.nn.calibration import calibrate, correct_biases
from lowbit.nn.convert import preparation_of, prepare, set_executor
from lowbit.nn.fidelity import Fidelity, measure_fidelity
from lowbit.nn.fused_blocks import fuse
from lowbit.nn.oscillation import OscillationControl
from lowbit.nn.qt_autograd import seed_rounding
from lowbit.ptq import equalize, reconstruct
from lowbit.recipe import Recipe, describe_layers
from lowbit.training.checkpoint import Checkpoint, Progress
from lowbit.training.display import PlainDisplay
from lowbit.training.evaluate import evaluate
from lowbit.training.inputs import build_loader, check_class_count, class_names, open_section
from lowbit.training.losses import PARTS, Features, Teacher, open_teacher, shared_features
from lowbit.training.metrics import Meter
from lowbit.training.mixed_precision import MixedPrecision
from lowbit.training.optimizers import (
    WeightAverage,
    build_optimizer,
    create_state,
    load_optimizer_state,
    optimizer_state,
    unmatched_words,
)
from lowbit.training.process import Ranks, join_ranks, seed_everything
from lowbit.training.quantization import example_images, recipe_of, recipe_values
from lowbit.training.resume import differences, environment_record
from lowbit.training.run_directory import RunClock


@dataclass
class Session:
    """A run's working parts. `network` is the model as it is called: wrapped when there are several ranks."""

    config: Config
    ranks: Ranks
    train_loader: Loader
    eval_loader: Loader | None
    classes: list[str]
    model: paddle.nn.Layer
    network: paddle.nn.Layer
    optimizer: paddle.optimizer.Optimizer
    precision: MixedPrecision
    environment: dict[str, str]
    progress: Progress
    recipe: Recipe | None = None  # of quantization-aware training
    fp32: paddle.nn.Layer | None = None  # the pretrained model that is quantized, as it was
    teacher: Teacher | None = None
    features: Features | None = None  # with a teacher, where the config asks for it
    oscillation: OscillationControl | None = None
    average: WeightAverage | None = None  # of the weights, where the config asks for it
    clock: RunClock | None = None  # of the whole run, once it trains
    notes: list[str] = field(default_factory=list)  # lines the user must see

    @property
    def statistics(self) -> list[paddle.Tensor]:
        """What a forward pass changes: quantizers' ranges are buffers, and so, one would think, are batch
        norm's means and variances, but to Paddle those are parameters without a gradient."""
        frozen = [parameter for parameter in self.model.parameters() if parameter.stop_gradient]
        return frozen + self.model.buffers()

    @property
    def loss_parts(self) -> tuple[str, ...]:
        """What the training loss is made of, where that is more than cross entropy."""
        return (*PARTS, *(["features"] if self.features else [])) if self.teacher else ()

    def order(self) -> dict[str, int]:
        """What the position within an epoch means; equal orders make equal batches."""
        sampler = self.config.DataLoader.Train.sampler
        return {
            "samples": len(self.train_loader.dataset),
            "batch_size": sampler.batch_size * self.config.Global.update_freq,
            "ranks": self.ranks.world,
            "shuffle": int(sampler.shuffle),
            "drop_last": int(sampler.drop_last),
            "seed": self.config.Global.seed,
        }

    def describe(self) -> str:
        """The line that a run opens with."""
        images = f"{len(self.train_loader.dataset)} images"
        if self.eval_loader is not None:
            images += f", {len(self.eval_loader.dataset)} for validation"
        ranks = f" with {self.ranks.world} processes" if self.ranks.world > 1 else ""
        return (
            f"Training {self.config.Arch.name} ({len(self.classes)} classes) on {self.environment['device']}"
            f"{ranks}, convolutions in {self.environment['convolutions']}: {images}, "
            f"{len(self.train_loader)} steps an epoch"
        )

    def plan(self) -> list[dict[str, Any]] | None:
        """What is quantized in each layer and how, for plan.json; None without a recipe."""
        return describe_layers(preparation_of(self.model).layers) if self.recipe else None

    def evaluate(self, display: PlainDisplay, model: paddle.nn.Layer | None = None) -> dict[str, float]:
        """Loss and accuracies on the validation images, of the model as it is or of another one."""
        with self.deployed_weights() if model is None else nullcontext():
            return evaluate(
                self.model if model is None else model,
                self.eval_loader,
                loss=self.config.Loss.Eval[0].cross_entropy,
                topk=self.config.eval_topk,
                ranks=self.ranks,
                display=display,
                autocast=self.precision.autocast
                if self._narrow_evaluation
                else self.precision.for_evaluation,
            )

    @property
    def _narrow_evaluation(self) -> bool:
        return self.config.AMP is not None and self.config.AMP.use_fp16_test

    def deployed_weights(self) -> AbstractContextManager[None]:
        """Within it the model has the weights that are evaluated and deployed: with EMA, the averages."""
        return self.average.applied() if self.average else nullcontext()

    def snapshot(self) -> Checkpoint:
        """The run as it is, to be saved."""
        model = {name: tensor.numpy() for name, tensor in self.model.state_dict().items()}
        averages = self.average.arrays() if self.average else {}
        return Checkpoint(
            model=model | averages,
            trained={name: model[name] for name in averages},
            optimizer=optimizer_state(self.optimizer, self.model),
            progress=self.progress,
            scaler=self.precision.state_dict(),
            config=self.config.model_dump(mode="json"),
            model_name=self.config.Arch.name,
            classes=self.classes,
            environment=self.environment,
            order=self.order(),
            recipe=recipe_values(self.recipe),
            teacher=self.teacher.digest if self.teacher else None,
        )

    def not_finite(self, snapshot: Checkpoint | None = None) -> list[str]:
        """What holds NaN or Inf of the weights and the optimizer's state: no step can repair these."""
        snapshot = snapshot or self.snapshot()
        return not_finite(snapshot.model | snapshot.trained | snapshot.optimizer, self.model)

    def fp32_snapshot(self) -> Checkpoint:
        """The unquantized model that the run starts from, as a checkpoint of its own."""
        weights = {name: tensor.numpy() for name, tensor in self.fp32.state_dict().items()}
        whole = replace(self.snapshot(), model=weights, optimizer={}, progress=Progress(), scaler={})
        return replace(whole, recipe=None, teacher=None, trained={})

    def calibrate(self, display: PlainDisplay, folder: Path) -> int:
        """Lets the quantizers of a new run choose their first scales; returns on how many batches.

        With `reconstruction` in the recipe, the weights' rounding is learned, too; what is done of it is kept
        in `folder` until it is complete.
        """
        steps = self.recipe.calibration.steps if self.recipe else 0
        if not steps:
            return 0
        settings = self.recipe.reconstruction
        if settings is not None and settings.equalize:
            equalize(self.model, next(self.first_batches(1)))
        count = calibrate(self.model, self.first_batches(steps))
        if self.recipe.calibration.correct_bias:
            correct_biases(self.model, self.first_batches(steps))
        if settings is not None:
            seed = self.config.Global.seed
            images = self.first_batches(steps)
            made = reconstruct(self.model, images, settings, seed=seed, folder=folder, progress=display)
            display.message(str(made))
            shutil.rmtree(folder)
        return count

    def fidelity(self) -> Fidelity:
        """How much of the fp32 model its calibrated form still computes, on the first calibration images."""
        return measure_fidelity(self.model, self.first_batches(self.recipe.calibration.steps))

    def first_batches(self, steps: int) -> Iterator[paddle.Tensor]:
        """The images of the first training batches, as they are trained on."""
        for batch in itertools.islice(self.train_loader.epoch(0), steps):
            yield paddle.to_tensor(batch.images)

    def restore(self, checkpoint: Checkpoint, path: Path) -> None:
        """Resumes from a checkpoint; what would not be the same run is an error or a note."""
        different = differences(checkpoint, self, path)
        sums = len(Meter(self.config.train_topk, parts=self.loss_parts).sums)
        if len(checkpoint.progress.meter) not in (0, sums):
            raise LowbitError(
                f"{path}: the figures of its unfinished epoch are others than this run's; resume with the "
                "Metric and Distillation sections of that run"
            )
        assign_weights(self.model, checkpoint.model | checkpoint.trained, source=path)
        if self.average and checkpoint.trained:
            self.average.load(checkpoint.model)
        elif self.average:
            self.average.reset()
        load_optimizer_state(self.optimizer, self.model, checkpoint.optimizer)
        if bad := not_finite(checkpoint.optimizer, self.model):
            raise LowbitError(f"{path}: NaN or Inf in the optimizer's {bad[0]}; use an earlier checkpoint")
        self.precision.load_state_dict(checkpoint.scaler)
        self.progress = checkpoint.progress
        self.train_loader.bad_images[:] = checkpoint.progress.bad_images
        if different:
            self.notes.append(f"resumed, but not as the same run: {'; '.join(different)}")


def open_session(config: Config, *, insist_on_device: bool = False) -> Session:
    """Builds the parts in an order that makes the same seed give the same run.

    `insist_on_device`: the device was requested explicitly, not only by a config file.
    """
    if config.DataLoader.Train is None:
        raise LowbitError("the config has no DataLoader.Train section: there is nothing to train on")
    fix = apply_amd_fix()
    device = resolve_device(config.Global.device, insist=insist_on_device)
    paddle.set_device(device.name)
    notes = [line for line in (device.note, fix.message if fix.worth_logging else None) if line]
    notes += _without_effect(config)
    ranks = join_ranks()

    train_data = open_section(config.DataLoader.Train.dataset, config.num_classes)
    num_classes = config.num_classes or len(train_data.classes)
    check_class_count(train_data, num_classes, "training")
    train_loader = build_loader(
        config.DataLoader.Train,
        train_data,
        training=True,
        seed=config.Global.seed,
        ranks=ranks,
        max_bad_images=config.Global.max_bad_images,
        update_freq=config.Global.update_freq,
    )
    eval_loader = None
    if config.DataLoader.Eval is not None and config.Global.eval_during_train:
        eval_data = open_section(config.DataLoader.Eval.dataset, num_classes)
        check_class_count(eval_data, num_classes, "validation")
        eval_loader = build_loader(config.DataLoader.Eval, eval_data, training=False, ranks=ranks)

    convolutions = batch_norm = "Paddle"
    if device.name == "cpu":
        convolutions = convolution_library(wanted=config.Global.fast_convolutions)
        batch_norm = norm_library(wanted=config.Global.fast_norm_ops)
        keep_freed_memory()
    seed_everything(config.Global.seed)
    recipe = recipe_of(config)
    model = build_model(config.Arch.name, num_classes, **config.Arch.kwargs)
    renewed: list[str] = []
    if config.pretrained:
        source = find_pretrained(config.pretrained, config.Arch.name, ssld=config.Arch.use_ssld)
        weights, left = without_quantizers(read_weights(source))
        renewed = assign_weights(
            model, weights, source=source, reset_classifier=config.Global.reset_classifier
        )
        if left:
            what = "weights of a quantized model, taken without what its quantizers had learned"
            notes.append(f"{source}: {what} (to continue with all of it: --resume)")
        if renewed:
            notes.append(f"{source}: loaded, except for a new classifier ({', '.join(renewed)})")
    elif config.Arch.pretrained:
        notes.append(
            "Arch.pretrained: True, but lowbit downloads nothing: training starts from random weights. For "
            f"PaddleClas's, put {config.Arch.name}_pretrained.pdparams into a folder and give it by "
            "--pretrained"
        )
    if config.Global.sync_bn or config.Arch.use_sync_bn:
        model = convert_sync_batch_norm(model)
    classes = class_names(train_data, num_classes)
    # With a new classifier the unquantized model knows nothing yet that one could compare with.
    keeps_fp32 = recipe is not None and config.pretrained is not None and not renewed
    fp32 = _copy(model, config, num_classes) if keeps_fp32 else None
    teacher = open_teacher(config, fp32, classes)
    if recipe is not None:
        prepare(model, recipe, example_images(config.Global.image_shape))
        seed_rounding(model, config.Global.seed)
        narrow = config.amp_level != "O0"
        notes += set_executor(model, config.Global.executor, device=device.name, qat_in_floats=narrow)
        notes.append(str(preparation_of(model)))
    features = None
    if teacher is not None and config.Distillation and config.Distillation.feature_weight:
        features = shared_features(model, teacher, example_images(config.Global.image_shape))
    if device.name == "cpu" and (reason := why_missing()):
        notes.append(f"training on Paddle's operators, which is slower: {reason}")
    if batch_norm != "Paddle":
        fuse(model)
    optimizer = build_optimizer(config.Optimizer, model)
    if words := unmatched_words(config.Optimizer, model):
        notes.append(f"no_weight_decay_name: no parameter of the model has {', '.join(words)} in its name")
    precision = _precision(config, device.name)
    model, optimizer = precision.prepare(model, optimizer)
    create_state(optimizer)
    if line := precision.notice():
        notes.append(line)
    if precision.native:
        convolutions += " in bf16"
    return Session(
        config=config,
        ranks=ranks,
        train_loader=train_loader,
        eval_loader=eval_loader,
        classes=classes,
        model=model,
        network=paddle.DataParallel(model) if ranks.world > 1 else model,
        optimizer=optimizer,
        precision=precision,
        environment=environment_record() | {"convolutions": convolutions, "batch_norm": batch_norm},
        progress=Progress(epoch=config.Global.start_epoch),
        recipe=recipe,
        fp32=fp32,
        teacher=teacher,
        features=features,
        oscillation=OscillationControl(model, recipe.oscillation) if recipe and recipe.oscillation else None,
        average=WeightAverage(model, config.ema_decay) if config.ema_decay is not None else None,
        notes=notes,
    )


def _without_effect(config: Config) -> list[str]:
    """A line for each setting of PaddleClas's that is read and does something else here."""
    lines = []
    if config.Global.use_dali:
        lines.append("Global.use_dali: images are read by lowbit's own loader, not by DALI")
    if config.Global.to_static:
        lines.append("Global.to_static: training is in dynamic mode; the exported model is static")
    return lines


def _copy(model: paddle.nn.Layer, config: Config, num_classes: int) -> paddle.nn.Layer:
    """The same model once more, in evaluation mode, before its layers become quantized ones."""
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    copy = build_model(config.Arch.name, num_classes, **config.Arch.kwargs)
    assign_weights(copy, weights, source=config.pretrained)
    copy.eval()
    return copy


def _precision(config: Config, device: str) -> MixedPrecision:
    """bf16 by the processor's instructions, unless they are missing or Paddle's convolutions are wanted."""
    section = config.AMP or AmpSection()
    native = section.dtype == "bf16" and config.Global.fast_convolutions and bf16_products.why_not() is None
    return MixedPrecision(
        config.amp_level,
        section.dtype,
        device,
        init_loss_scaling=section.scale_loss,
        use_dynamic_loss_scaling=section.use_dynamic_loss_scaling,
        native=native and device == "cpu",
    )
