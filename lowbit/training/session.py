"""Everything a training loop needs, built from a config: model, optimizer, precision, loaders."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paddle

from lowbit.config import Config
from lowbit.config.schema import AmpSection
from lowbit.data import Loader
from lowbit.errors import LowbitError
from lowbit.layers import convert_sync_batch_norm
from lowbit.layers.calibrate import calibrate
from lowbit.layers.prepare import preparation_of, prepare
from lowbit.machine import apply_amd_fix, environment_differences, environment_record, resolve_device
from lowbit.models import assign_weights, build_model, load_weights
from lowbit.recipe import Recipe, describe_layers
from lowbit.training.checkpoint import Checkpoint, Progress
from lowbit.training.distributed import Ranks, join_ranks
from lowbit.training.inputs import build_loader, check_class_count, class_names, open_section
from lowbit.training.mixed_precision import MixedPrecision
from lowbit.training.optimizers import build_optimizer, create_state, load_optimizer_state, optimizer_state
from lowbit.training.quantization import recipe_of, recipe_values
from lowbit.training.seeding import seed_everything


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
    notes: list[str] = field(default_factory=list)  # lines the user must see

    @property
    def statistics(self) -> list[paddle.Tensor]:
        """What a forward pass changes: quantizers' ranges are buffers, and so, one would think, are batch
        norm's means and variances, but to Paddle those are parameters without a gradient."""
        frozen = [parameter for parameter in self.model.parameters() if parameter.stop_gradient]
        return frozen + self.model.buffers()

    def _order(self) -> dict[str, int]:
        """What the position within an epoch means; equal orders make equal batches."""
        sampler = self.config.DataLoader.Train.sampler
        return {
            "samples": len(self.train_loader.dataset),
            "batch_size": sampler.batch_size,
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
            f"{ranks}: {images}, {len(self.train_loader)} steps an epoch"
        )

    def plan(self) -> list[dict[str, Any]] | None:
        """What is quantized in each layer and how, for plan.json; None without a recipe."""
        return describe_layers(preparation_of(self.model).layers) if self.recipe else None

    def snapshot(self) -> Checkpoint:
        """The run as it stands, to be saved."""
        return Checkpoint(
            model={name: tensor.numpy() for name, tensor in self.model.state_dict().items()},
            optimizer=optimizer_state(self.optimizer, self.model),
            progress=self.progress,
            scaler=self.precision.state_dict(),
            config=self.config.model_dump(mode="json"),
            model_name=self.config.Arch.name,
            classes=self.classes,
            environment=self.environment,
            order=self._order(),
            recipe=recipe_values(self.recipe),
        )

    def calibrate(self) -> None:
        """Lets the quantizers of a new run choose their first scales from a few training batches."""
        steps = self.recipe.calibration.steps if self.recipe else 0
        if steps:
            batches = itertools.islice(self.train_loader.epoch(0), steps)
            calibrate(self.model, (paddle.to_tensor(batch.images) for batch in batches))

    def restore(self, checkpoint: Checkpoint, path: Path) -> None:
        """Goes on where a checkpoint stands; what would not be the same run is an error or a note."""
        if checkpoint.model_name != self.config.Arch.name:
            raise LowbitError(
                f"{path} is a checkpoint of {checkpoint.model_name}, the config trains "
                f"{self.config.Arch.name}; resume with the config of that run, or start a new one"
            )
        if checkpoint.recipe != recipe_values(self.recipe):
            raise LowbitError(
                f"{path} was trained with another recipe (or none): resume with the recipe of that run, "
                "or start a new one with --pretrained"
            )
        if checkpoint.classes != self.classes:
            raise LowbitError(
                f"{path} was trained on other classes ({_some(checkpoint.classes)}) than the data has "
                f"({_some(self.classes)}): its outputs would mean something else. Resume with the data of "
                "that run, or start a new one with --pretrained"
            )
        different = [
            f"{key} was {checkpoint.order.get(key)}, is {value}"
            for key, value in self._order().items()
            if checkpoint.order.get(key) != value
        ]
        if different and checkpoint.progress.batch:
            raise LowbitError(
                f"{path} stands in the middle of an epoch, and the batches would not be the same: "
                f"{'; '.join(different)}. Resume with the same settings, or from an epoch's end (model_N)"
            )
        assign_weights(self.model, checkpoint.model, source=path)
        load_optimizer_state(self.optimizer, self.model, checkpoint.optimizer)
        self.precision.load_state_dict(checkpoint.scaler)
        self.progress = checkpoint.progress
        self.train_loader.bad_images[:] = checkpoint.progress.bad_images
        different += environment_differences(checkpoint.environment, self.environment)
        different += [f"{place} has changed" for place in _changed_settings(checkpoint.config, self.config)]
        if different:
            self.notes.append(f"resumed, but not as the same run: {'; '.join(different)}")


def open_session(config: Config, *, insist_on_device: bool = False) -> Session:
    """Builds the parts in an order that makes the same seed give the same run.

    `insist_on_device`: the device was asked for in so many words, not just by a config file that came so.
    """
    if config.DataLoader.Train is None:
        raise LowbitError("the config has no DataLoader.Train section: there is nothing to train on")
    fix = apply_amd_fix()
    device = resolve_device(config.Global.device, insist=insist_on_device)
    paddle.set_device(device.name)
    notes = [line for line in (device.note, fix.message if fix.worth_logging else None) if line]
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
    )
    eval_loader = None
    if config.DataLoader.Eval is not None and config.Global.eval_during_train:
        eval_data = open_section(config.DataLoader.Eval.dataset, num_classes)
        check_class_count(eval_data, num_classes, "validation")
        eval_loader = build_loader(config.DataLoader.Eval, eval_data, training=False, ranks=ranks)

    seed_everything(config.Global.seed)
    recipe = recipe_of(config)
    model = build_model(config.Arch.name, num_classes, **config.Arch.kwargs)
    if pretrained := config.Global.pretrained_model or config.Arch.pretrained:
        renewed = load_weights(model, pretrained, reset_classifier=config.Global.reset_classifier)
        if renewed:
            notes.append(f"{pretrained}: taken, but for a new classifier ({', '.join(renewed)})")
    if config.Global.sync_bn or config.Arch.use_sync_bn:
        model = convert_sync_batch_norm(model)
    if recipe is not None:
        prepare(model, recipe)
        notes.append(str(preparation_of(model)))
    optimizer = build_optimizer(config.Optimizer, model)
    precision = _precision(config, device.name)
    model, optimizer = precision.prepare(model, optimizer)
    create_state(optimizer)
    if line := precision.notice():
        notes.append(line)
    return Session(
        config=config,
        ranks=ranks,
        train_loader=train_loader,
        eval_loader=eval_loader,
        classes=class_names(train_data, num_classes),
        model=model,
        network=paddle.DataParallel(model) if ranks.world > 1 else model,
        optimizer=optimizer,
        precision=precision,
        environment=environment_record(),
        progress=Progress(epoch=config.Global.start_epoch),
        recipe=recipe,
        notes=notes,
    )


def _some(classes: list[str]) -> str:
    return ", ".join(classes[:4]) + (f", … {len(classes)} in all" if len(classes) > 4 else "")


def _changed_settings(saved: dict[str, Any], config: Config) -> list[str]:
    """Which parts of the config that shape the weights differ from those of a checkpoint."""
    now = config.model_dump(mode="json")
    places = (("AMP",), ("Arch",), ("Loss", "Train"), ("Optimizer",), ("DataLoader", "Train", "dataset"))

    def part(values: Any, place: tuple[str, ...]) -> Any:
        for key in place:
            values = (values or {}).get(key)
        return values

    return [".".join(place) for place in places if part(saved, place) != part(now, place)]


def _precision(config: Config, device: str) -> MixedPrecision:
    section = config.AMP or AmpSection()
    return MixedPrecision(
        config.amp_level,
        section.dtype,
        device,
        init_loss_scaling=section.scale_loss,
        use_dynamic_loss_scaling=section.use_dynamic_loss_scaling,
    )
