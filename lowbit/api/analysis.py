"""analyze(): how much each layer's quantization costs, and which bits each should have under a budget."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import yaml
from paddle import nn

from lowbit.analysis import Budget, LayerCost, Measurement, parse_budget, propose_bits, proposed_recipe
from lowbit.analysis import analyze as analyze_batches
from lowbit.analysis.analyze import FILE, Store, folder_of
from lowbit.analysis.sensitivity import logits_of
from lowbit.api.data import Batches, Data, StrPath
from lowbit.api.result import Result
from lowbit.api.runs import open_model, open_progress, validation_images
from lowbit.config.data import DataSplit
from lowbit.data.dataset import SpreadDataset
from lowbit.data.loader import Batch as ImageBatch
from lowbit.deploy.model_files import sha256
from lowbit.errors import LowbitError
from lowbit.files import write_atomically
from lowbit.formatting import Section, decibels, number, percent
from lowbit.machine import resolve_device
from lowbit.nn import calibrate, has_quantized_layers, preparation_of, prepare
from lowbit.nn.calibration import correct_biases
from lowbit.nn.convert import Preparation, quantizing_only
from lowbit.recipe import Recipe, dump_recipe, load_recipe
from lowbit.training.inputs import build_loader, check_class_count, open_section
from lowbit.training.quantization import example_images, recipe_values
from lowbit.training.trained_model import TrainedModel

_BATCH = 50  # images of a run at a time: the outputs of all layers are held in memory
_ROLES = ("weight", "input", "gradient")


@dataclass(frozen=True)
class LayerAnalysis:
    """The cost of quantizing one layer; signal-to-noise ratios (SQNR) are in decibels."""

    name: str
    bits: str  # such as "W4A4"
    loss: float  # that the layer adds when it alone is quantized
    top1: float  # with this layer alone quantized
    divergence: float  # of the answers from those in full precision, in nats, with this layer alone quantized
    loss_without: float  # that goes away when this layer alone is not quantized
    top1_without: float  # with all layers but this one quantized
    weight_sqnr: float | None
    input_sqnr: float | None
    gradient_sqnr: float | None  # None where gradients are not quantized
    clipped: dict[str, float | None]  # fraction of the values of "weight", "input" and "gradient"
    dead: dict[str, int | None]  # groups of them whose values are all zero
    proposed_bits: int | None = None  # under the budget


@dataclass(frozen=True)
class Analysis(Result):
    """The result of `analyze`; layers with the highest cost come first."""

    samples: int
    layers: tuple[LayerAnalysis, ...]
    full: dict[str, float]  # loss and top1 in full precision
    quantized: dict[str, float]
    labels: str  # "data", or "network" where the data had none: the classes of the network in full precision
    recipe: Recipe | None = field(default=None, repr=False)  # with the proposed bits
    title: str = ""  # what was analyzed, where it has a name
    recipe_file: Path | None = None  # where that recipe was written, of a run
    details: dict[str, Any] = field(default_factory=dict, repr=False)  # all figures, as in analysis.json

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON-compatible values."""
        recipe = None if self.recipe is None else yaml.safe_load(dump_recipe(self.recipe))
        return Result.to_dict(replace(self, recipe=None)) | {"recipe": recipe}

    def _sections(self) -> list[Section]:
        roles = _ROLES if any(one.gradient_sqnr is not None for one in self.layers) else _ROLES[:2]
        letters = {"weight": "W", "input": "A", "gradient": "G"}
        wide = ["diverg.", "loss, all but it", "top-1, all but it"]
        wide += [f"{letters[role]} {word}" for role in roles for word in ("clipped", "dead")]
        columns = ["layer", "bits", "loss", "top-1", *(f"{letters[role]} dB" for role in roles)]
        columns += ["propose"] if self.recipe is not None else []
        rows = []
        for one in self.layers:
            row = [one.name, one.bits, f"{one.loss:+.4f}", percent(one.top1)]
            row += [decibels(getattr(one, f"{role}_sqnr")) for role in roles]
            row += ["" if one.proposed_bits is None else str(one.proposed_bits)] if self.recipe else []
            row += [number(one.divergence), f"{-one.loss_without:+.4f}", percent(one.top1_without)]
            for role in roles:
                dead = one.dead[role]
                row += [percent(one.clipped[role]), "" if dead is None else str(dead)]
            rows.append(tuple(row))
        lines = [
            f"full precision: loss {self.full['loss']:.4f}, top-1 {percent(self.full['top1'])}",
            f"quantized:      loss {self.quantized['loss']:.4f}, top-1 {percent(self.quantized['top1'])}",
        ]
        if self.labels == "network":
            lines.append("The data have no labels: those of the network in full precision were used.")
        title = self.title or f"{self.samples} samples"
        title = f"Each layer alone quantized, on {title}: those that cost most first"
        return [Section(title, (*columns, *wide), tuple(rows), tuple(lines), left=2, wide=tuple(wide))]


def analyze(
    net: nn.Layer | StrPath,
    data: Data | StrPath | None = None,
    *,
    budget: str | None = None,
) -> Analysis:
    """Rank the layers of a quantized network by the cost of their quantization.

    Each layer is measured twice: the loss when only this layer is quantized, and when only this layer is not.
    The network returns logits [N, classes] (the first of several outputs). Labels are those of the data or,
    if there are none, the classes predicted in full precision. A `budget`, such as "4.5bits" (average per
    weight) or "200KB", adds proposed bits for every layer and a recipe with them. The network is not changed.

    `net` may also be a run folder, as for the command `lowbit analyze`: `lowbit.analyze("runs/w4a4")`, on its
    validation images or those in the folder `data`. `analyze_run` has all options.

    >>> import numpy as np, paddle, lowbit
    >>> net = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 2))
    >>> x, y = np.random.default_rng(0).standard_normal([64, 4]), np.arange(64) % 2
    >>> net = lowbit.quantize(net, {"weight_bits": 4, "activation_bits": 4}, data=[(x, y)])
    >>> found = lowbit.analyze(net, [(x, y)], budget="5bits")
    >>> sorted(layer.name for layer in found.layers)
    ['0', '2']
    """
    if not isinstance(net, nn.Layer):
        if not (data is None or isinstance(data, str | os.PathLike)):
            raise LowbitError("a run has its own images: give data as a folder of images, or leave it out")
        return analyze_run(net, budget=budget, data_path=data)
    if data is None or isinstance(data, str | os.PathLike):
        raise LowbitError("lowbit.analyze(net, data): give batches, such as a paddle.io.DataLoader")
    net = net._layers if isinstance(net, paddle.DataParallel) else net
    if not has_quantized_layers(net):
        raise LowbitError(f"{type(net).__name__} is not quantized: call lowbit.quantize(net, recipe) first")
    wanted = None if budget is None else parse_budget(budget)
    modes = [(layer, layer.training) for layer in net.sublayers(include_self=True)]
    labelled = _Labelled(net, Batches(net, data))
    try:
        net.eval()
        found = analyze_batches(net, labelled)
    finally:
        for layer, training in modes:
            layer.training = training
    return analysis_of(found, net, wanted, labels="data" if labelled.has_labels else "network")


def analyze_run(
    checkpoint: StrPath,
    *,
    recipe: StrPath | None = None,
    images: int = 1000,
    budget: str | None = None,
    output: StrPath | None = None,
    data_path: StrPath | None = None,
    config: StrPath | None = None,
    override: Sequence[str] = (),
    device: str | None = None,
    trust_code: bool = False,
    quiet: bool = False,
) -> Analysis:
    """Analyze the model of a checkpoint or run folder, as `lowbit analyze` does.

    `recipe` defines how an fp32 model is quantized. Results are saved as `analysis.json` in the run folder,
    and a second call continues from there. With a `budget` the proposed recipe is written to
    `output`, by default next to `analysis.json`.

    analyze_run("runs/digits", recipe="qat_w4a4", budget="4.5bits").recipe_file
    """
    wanted = None if budget is None else parse_budget(budget)
    if output is not None and wanted is None:
        raise LowbitError("--output is for the recipe of a --budget: give both")
    trained = open_model(checkpoint, config, override, trust_code=trust_code)
    split = validation_images(trained, data_path)
    paddle.set_device(resolve_device(device).name)
    if recipe is not None:
        quantize_as(trained, recipe, split)
    elif not trained.quantized:
        raise LowbitError(f"{trained.source} is in fp32: say with --recipe FILE how it is to be quantized")
    measured, folder = _measure_run(trained, split, recipe, images, quiet=quiet)
    found = analysis_of(measured, trained.model, wanted, title=measured.title)
    if found.recipe is None or budget is None:
        return found
    file = Path(output or folder / f"recipe_{budget.strip().replace(' ', '')}.yaml")
    why = f"# Bits proposed by `lowbit analyze` for {trained.source} under {wanted}.\n"
    text = why + dump_recipe(found.recipe)
    write_atomically(file, lambda draft: draft.write_text(text, "utf-8"))
    return replace(found, recipe_file=file)


def _measure_run(
    trained: TrainedModel,
    split: DataSplit,
    recipe: StrPath | None,
    images: int,
    *,
    quiet: bool,
) -> tuple[Measurement, Path]:
    """What each layer costs, taken from the run's analysis.json where it is known; and the run's folder."""
    split = split.model_copy(update={"sampler": split.sampler.model_copy(update={"batch_size": _BATCH})})
    dataset = open_section(split.dataset, len(trained.classes), classes=trained.classes)
    check_class_count(dataset, len(trained.classes), "validation")
    loader = build_loader(split, SpreadDataset(dataset, images), training=False)
    folder = folder_of(trained.source)
    settings = {
        "images": len(loader.dataset),
        "data": split.dataset.model_dump(mode="json"),
        "recipe": recipe_values(preparation_of(trained.model).recipe),
    }
    store = Store(
        folder / FILE, checkpoint=trained.source.name, digest=sha256(trained.source), settings=settings
    )
    how = "" if recipe is None else f" with {Path(recipe).name}"
    title = f"{trained.source.name}{how} on {len(loader.dataset)} images"
    fast = trained.config.Global.fast_convolutions
    with open_progress(quiet=quiet) as display:
        return analyze_batches(trained.model, loader, store, title=title, display=display, fast=fast), folder


def analysis_of(
    found: Measurement, net: nn.Layer, budget: Budget | None = None, *, title: str = "", labels: str = "data"
) -> Analysis:
    """What was measured about the layers of a network, with bits for them under the budget."""
    preparation = preparation_of(net)
    bits = None if budget is None else propose(preparation, found.ranking, budget)
    return Analysis(
        samples=found.images,
        layers=tuple(_layer(row, bits) for row in found.ranking),
        full=found.full,
        quantized=found.quantized,
        labels=labels,
        recipe=None if bits is None else proposed_recipe(preparation, bits),
        title=title,
        details=vars(found) | {"proposed": bits},
    )


def propose(preparation: Preparation, ranking: list[dict[str, Any]], budget: Budget) -> dict[str, int]:
    """The bits of every layer whose weight is on an integer grid, under the budget."""
    rows = {row["name"]: row for row in ranking}
    costs, fixed = [], 0
    for assigned in preparation.layers:
        grid, count = assigned.plan.forward.weight.grid, math.prod(assigned.layer.shape)
        if grid.is_integer and grid.bits is not None and assigned.layer.name in rows:
            costs.append(
                LayerCost(assigned.layer.name, count, grid.bits, rows[assigned.layer.name]["divergence"])
            )
        else:
            fixed += 32 * count
    if not costs:
        raise LowbitError("no weight of the network is on an integer grid: there are no bits to propose")
    return propose_bits(costs, budget, fixed_bits=fixed)


class _Labelled:
    """Batches with classes: those of the data, or of the network in full precision."""

    def __init__(self, net: nn.Layer, batches: Batches) -> None:
        self._net, self._batches = net, batches
        first = batches.first
        self.has_labels = first is not None and first.classes is not None

    def __len__(self) -> int:
        return sum(1 for _ in self._batches)

    def epoch(self, _epoch: int, start: int = 0) -> Iterator[ImageBatch]:
        for index, batch in enumerate(self._batches):
            if index < start:
                continue
            made: Any = ImageBatch(tuple(one.numpy() for one in batch.inputs), np.empty(0), 1.0)  # type: ignore[arg-type]
            classes = batch.classes if self.has_labels else self._classes(made)
            if classes is None or len(classes) != batch.size:
                raise LowbitError("some batches have a class index per sample and others have not")
            made.labels = classes
            yield made

    def _classes(self, batch: ImageBatch) -> np.ndarray[Any, Any]:
        with quantizing_only(self._net, ()):
            return np.asarray(logits_of(self._net, batch).numpy().argmax(axis=1))


def _layer(row: dict[str, Any], bits: dict[str, int] | None) -> LayerAnalysis:
    return LayerAnalysis(
        name=row["name"],
        bits=row["bits"],
        loss=row["only_loss"],
        top1=row["only_top1"],
        divergence=row["divergence"],
        loss_without=row["without_loss"],
        top1_without=row["without_top1"],
        weight_sqnr=row["weight_sqnr"],
        input_sqnr=row["input_sqnr"],
        gradient_sqnr=row["gradient_sqnr"],
        clipped={role: row[f"{role}_clipped"] for role in _ROLES},
        dead={role: row[f"{role}_dead"] for role in _ROLES},
        proposed_bits=None if bits is None else bits.get(row["name"]),
    )


_STEPS = 4  # of calibration, where the recipe has none: signs and ranges must be known to evaluate


def quantize_as(
    trained: TrainedModel, recipe: str | os.PathLike[str] | Recipe, evaluation: DataSplit
) -> None:
    """The model, in place, quantized without training: calibrated on training images if the config names
    any, else on the validation images, prepared as in evaluation."""
    if trained.quantized:
        raise LowbitError(f"{trained.source} is quantized already, by its own recipe: leave out --recipe")
    recipe = load_recipe(recipe)
    prepare(trained.model, recipe, example_images(trained.config.Global.image_shape))
    steps = recipe.calibration.steps or _STEPS

    def batches() -> Iterator[paddle.Tensor]:
        return _batches(trained, evaluation, steps)

    calibrate(trained.model, batches())
    if recipe.calibration.correct_bias:
        correct_biases(trained.model, batches())
    trained.model.eval()


def _batches(trained: TrainedModel, evaluation: DataSplit, steps: int) -> Iterator[paddle.Tensor]:
    split = trained.config.DataLoader.Train or evaluation
    shown = split.dataset.model_copy(update={"transform_ops": evaluation.dataset.transform_ops})
    split = split.model_copy(update={"dataset": shown})
    dataset = open_section(shown, len(trained.classes), classes=trained.classes)
    some = SpreadDataset(dataset, steps * split.sampler.batch_size)
    for batch in build_loader(split, some, training=False).epoch(0):
        yield paddle.to_tensor(batch.images)
