"""quantize() and calibrate(): a network of the user's own becomes a quantized one, for a loop of his own."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import paddle
from paddle import nn

from lowbit.api.data import Batches, Data, Example, example_inputs
from lowbit.api.result import Result
from lowbit.errors import LowbitError
from lowbit.formatting import Section, boxed
from lowbit.kernels import why_missing
from lowbit.nn import calibrate as calibrate_layers
from lowbit.nn import find_quantizers, preparation_of, prepare
from lowbit.nn.calibration import correct_biases
from lowbit.nn.convert import set_executor
from lowbit.nn.eval_mode import check_runs
from lowbit.nn.fidelity import measure_fidelity
from lowbit.nn.qt_autograd import seed_rounding
from lowbit.ptq import Reconstructed, equalize, reconstruct
from lowbit.recipe import Recipe, load_recipe
from lowbit.training.display import open_display

_log = logging.getLogger("lowbit")
_WHAT_TO_DO = ("Train it before you export it; or, without training, use 8 bits (ptq_w8a8).",)
_STEPS = 20  # batches to calibrate on, where the recipe does not say


def quantize(
    net: nn.Layer,
    recipe: str | os.PathLike[str] | Mapping[str, Any] | Recipe,
    example: Example | None = None,
    data: Data | None = None,
    seed: int = 0,
    work_dir: str | os.PathLike[str] | None = None,
) -> nn.Layer:
    """Quantize a network in place by a recipe, and return it.

    `recipe` is a name, the path of a file, a dict or a `Recipe`. It is for quantization-aware training (QAT),
    low-precision training (with quantized gradients) or post-training quantization.

    `data` are batches for calibration (see `calibrate`). For post-training quantization nothing else is
    needed; QAT starts from better scales. Without `data`, call `calibrate` afterwards if the recipe needs it.
    `example` is one batch of inputs, for recipes that trace the network: those with `outputs: quantized` or
    `batch_norm: {fold: training}`; by default the first batch of `data`. `seed` is that of stochastic
    rounding; the step counters of the layers are saved with the network.

    A recipe with `reconstruction`, such as `ptq_w4a8`, learns how to round, which takes minutes to an hour,
    and less inside `with lowbit.accelerate():`. With `work_dir`, an interrupted call continues when it is
    repeated.

    The network is changed in place; parameters keep their names, so weights can be loaded before or after. To
    keep the original, quantize a copy (`copy.deepcopy(net)`). Create the optimizer afterwards, since recipes
    may add parameters (LSQ's steps, PACT's bounds). Then train as usual, with `net.train()` and `net.eval()`.

    >>> import numpy as np, paddle, lowbit
    >>> net = paddle.nn.Sequential(paddle.nn.Linear(4, 8), paddle.nn.ReLU(), paddle.nn.Linear(8, 2))
    >>> net = lowbit.quantize(net, {"weight_bits": 8, "activation_bits": 8})
    >>> type(net[0]).__name__
    'QuantizedLinear'
    """
    if not isinstance(net, nn.Layer):
        raise LowbitError(f"quantize takes a network (paddle.nn.Layer), got {type(net).__name__}")
    chosen = load_recipe(recipe)
    batches = None if data is None else Batches(net, data, limit=chosen.calibration.steps or _STEPS)
    if example is not None:
        inputs = example_inputs(net, example)
    else:
        inputs = batches.first.inputs if batches is not None and batches.first is not None else ()
    if inputs:
        check_runs(net, inputs)  # before anything of the network is changed
    prepare(net, chosen, *inputs)
    seed_rounding(net, seed)
    device = paddle.device.get_device().split(":")[0]
    for line in set_executor(net, "auto", device=device):
        _log.info(line)
    _log.info(str(preparation_of(net)))
    if device == "cpu" and (reason := why_missing()):
        _log.warning("quantizing with Paddle's operators, which is slower: %s", reason)
    if batches is not None:
        _calibrate(net, batches, seed=seed, work_dir=work_dir)
        fidelity = measure_fidelity(net, batches.inputs())
        if fidelity.destroyed:
            _log.warning("\n%s", boxed(fidelity.warning(_WHAT_TO_DO)))
    return net


@dataclass(frozen=True)
class Calibration(Result):
    """The result of `calibrate`."""

    batches: int
    samples: int
    calibrated: int  # operands whose scale, bound or sign was chosen
    known: int  # operands that had one already, or choose it in every call
    biases_corrected: int  # layers, with `correct_bias` in the recipe
    reconstructed: Reconstructed | None = None  # with `reconstruction` in the recipe

    def _sections(self) -> list[Section]:
        lines = [
            f"Calibrated {self.calibrated} of {self.calibrated + self.known} operands on {self.batches} "
            f"batches ({self.samples} samples)."
        ]
        if not self.calibrated:
            lines.append("Nothing to calibrate: every operand has a scale, or computes it in every call.")
        if self.biases_corrected:
            lines.append(f"Corrected the biases of {self.biases_corrected} layers.")
        if self.reconstructed is not None:
            lines += [f"{line}." for line in str(self.reconstructed).splitlines()]
        return [Section("", lines=tuple(lines))]


def calibrate(
    net: nn.Layer,
    data: Data,
    steps: int | None = None,
    seed: int = 0,
    work_dir: str | os.PathLike[str] | None = None,
) -> Calibration:
    """Choose the first scales of a quantized network from some batches, without training.

    Scales that are known already (trained, or calibrated before) stay. `data` is any iterable of tensors or
    arrays, `(x, y)` pairs or dicts, a `paddle.io.DataLoader`, or arrays `(images, labels)`; labels are not
    used. `steps` is the number of batches; by default what the recipe says, or 20. Give batches prepared as
    in evaluation: augmented images show values that a deployed network never meets. `seed` and `work_dir` are
    those of `quantize`, for recipes with `reconstruction`.

    >>> import numpy as np, paddle, lowbit
    >>> net = lowbit.quantize(paddle.nn.Sequential(paddle.nn.Linear(4, 2)), {"weight_bits": 8})
    >>> batches = [np.random.default_rng(0).standard_normal([16, 4]) for _ in range(3)]
    >>> print(lowbit.calibrate(net, batches))
    Calibrated 1 of 2 operands on 3 batches (48 samples).
    """
    if steps is not None and steps < 1:
        raise LowbitError(f"calibration needs at least one batch, got steps={steps}")
    recipe = preparation_of(_unwrapped(net)).recipe
    batches = Batches(net, data, limit=steps or recipe.calibration.steps or _STEPS)
    return _calibrate(_unwrapped(net), batches, seed=seed, work_dir=work_dir)


def _calibrate(
    net: nn.Layer, batches: Batches, *, seed: int, work_dir: str | os.PathLike[str] | None
) -> Calibration:
    quantizers = find_quantizers(net)
    missing = [quantizer for quantizer in quantizers if not quantizer.is_ready]
    samples = 0

    def inputs() -> Any:
        nonlocal samples
        for batch in batches:
            samples += batch.size
            yield batch.inputs

    recipe = preparation_of(net).recipe
    # Weights that have been reconstructed are on their grids.
    settings = recipe.reconstruction if missing else None
    if settings is not None and settings.equalize and batches.first is not None:
        equalize(net, *batches.first.inputs)
    count = calibrate_layers(net, inputs())
    seen = samples
    corrected, made = 0, None
    # Known scales were corrected for when they were chosen; a second time would take it out twice.
    if missing and recipe.calibration.correct_bias:
        corrected = correct_biases(net, islice(inputs(), count))
    if settings is not None:
        folder = None if work_dir is None else Path(work_dir)
        with open_display() as display:
            made = reconstruct(net, inputs(), settings, seed=seed, folder=folder, progress=display)
    return Calibration(
        batches=count,
        samples=seen,
        calibrated=sum(quantizer.is_ready for quantizer in missing),
        known=len(quantizers) - len(missing),
        biases_corrected=corrected,
        reconstructed=made,
    )


def _unwrapped(net: nn.Layer) -> nn.Layer:
    return net._layers if isinstance(net, paddle.DataParallel) else net
