"""Quantizers: put a layer's input, weight or output gradient on the grid of its spec."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import paddle
from paddle import Tensor, nn

from lowbit.errors import LowbitError
from lowbit.nn.scale_state import (
    CalibrationStats,
    LearnedScale,
    RunningRange,
    first_integer,
    initial_alpha,
    initial_step,
    largest_across_ranks,
    mean_across_ranks,
)
from lowbit.numerics import (
    Granularity,
    Grid,
    asymmetric_grid,
    fake_quantize,
    lsq_fake_quantize,
    lsq_plus_fake_quantize,
    lsq_plus_initial,
    pact_clip,
    pact_fake_quantize,
    parse_grid,
    parse_scaling,
    quantize_to_integers,
    round_to_grid,
    scale_from_range,
    zero_point_of,
)
from lowbit.numerics.fake_quant import usable_bound
from lowbit.numerics.fused_groups import ChannelRanges, to_dynamic_bytes
from lowbit.numerics.observed import MovingScale, fits, observed_fake_quantize
from lowbit.numerics.scale import at_least_smallest
from lowbit.recipe.recipe import Lsq, Pact
from lowbit.recipe.spec import TensorSpec

_UNKNOWN = -1  # of the buffer `unsigned`
_METHODS = {"forward", "values_and_scale", "integers"}
_SUMMARY = "paddle.hapi.model_summary"  # where paddle.summary's hooks are defined


@dataclass(frozen=True, eq=False)  # no tuple: Paddle takes the tensors of one for a PyLayer's inputs
class KnownScale:
    """How a tensor is quantized with one scale that is known before: the scale, with as many axes.

    Values are clipped at `bound`, where there is one, before they are rounded; it does not learn.
    """

    scale: Tensor
    grid: Grid
    bound: Tensor | None = None


class Quantizer(nn.Layer):
    """Values on the spec's grid, held in floats: clipped (PACT), scaled, rounded.

    In training, what the spec keeps from batch to batch (a range, LSQ's step, PACT's bound, the sign) is
    learned or observed; in evaluation it is used as it stands. All of it is in the state_dict. `shape` and
    `layout` say how the operand lies; of an input only the channels' size counts, and its middle axes may
    be missing, as they are in front of a Linear layer. In evaluation the operators are plain ones, which
    `paddle.jit.save` exports.

    >>> quantizer = Quantizer(TensorSpec(grid="int4"), "NC", "input", shape=[1, 2])
    >>> quantizer(paddle.to_tensor([[7.0, 2.4]])).tolist()
    [[7.0, 2.0]]
    """

    rounds_at_random = False

    def __init__(
        self,
        spec: TensorSpec,
        layout: str,
        role: Literal["input", "weight", "gradient", "output"],
        *,
        shape: Sequence[int],
        name: str = "",
        pact: Pact | None = None,
        lsq: Lsq | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.layout, self.role, self.layer_name = spec, layout, role, name
        if spec.rounding == "stochastic" and not self.rounds_at_random:
            raise LowbitError(
                f"{self._who()}: rounding stochastic is for low-precision training, not for QAT"
            )
        self.alpha: LearnedScale | None = None
        self.step: LearnedScale | None = None
        self.offset: LearnedScale | None = None
        self.kept: RunningRange | None = None
        self.fixed: RunningRange | None = None
        self._per_image = False
        self._calibration_stats: CalibrationStats | None = None
        if not spec.grid.is_integer:
            return
        # An input's other axes change from batch to batch, so that nothing can be kept for them.
        kept = [letter for letter in spec.granularity.letters if role == "weight" or letter == "C"]
        self._kept_granularity = Granularity("".join(kept))
        kept_shape = _without_leading_ones(self._kept_granularity.scale_shape(shape, layout))
        if spec.sign == "auto":
            self.register_buffer("unsigned", paddle.full([1], _UNKNOWN, "int32"))
        if spec.clip == "pact":
            pact = pact or Pact()
            self.alpha = LearnedScale(
                kept_shape,
                initial=None if pact.initial == "data" else pact.initial,
                learning_rate=pact.learning_rate,
                weight_decay=pact.weight_decay,
            )
        if spec.scaling.name == "learned":
            lsq = lsq or Lsq()
            self.step = LearnedScale(
                kept_shape, learning_rate=lsq.learning_rate, weight_decay=lsq.weight_decay
            )
            if spec.sign == "asymmetric":
                self.offset = LearnedScale(
                    [1], learning_rate=lsq.learning_rate, weight_decay=lsq.weight_decay
                )
            self._per_image = lsq.gradient_scale == "image" and self._is_activation
        elif spec.keeps_scales:
            self.kept = RunningRange(spec.scaling, kept_shape)

    @paddle.jit.not_to_static  # decided in Python, before a program is made of it
    def forward(self, x: Tensor) -> Tensor:
        if not self.spec.grid.is_integer:
            return self._round(x)
        if self._calibration_stats is not None:
            return self._calibration_stats.see(x)
        if self.only_shows_shapes:
            return x
        if paddle.in_dynamic_mode():
            return self.values_and_scale(x)[0]
        if self.training:
            raise LowbitError(
                f"{self._who()} is in training mode, which observes batches and cannot be part of a static "
                "program: call eval() on the model before exporting it, and train without to_static"
            )
        with paddle.no_grad():  # a served program has no gradients, and PyLayers do not survive in it
            return self.values_and_scale(x)[0]

    def grid(self) -> Grid:
        """The grid in use; with `sign: auto`, the one that calibration has chosen."""
        grid = self._grid_in_bits()
        if self.offset is not None:
            step, offset = (self._known(part).value for part in (self.step, self.offset))
            return asymmetric_grid(grid.bits, zero_point_of(step, offset, grid.bits))
        if self.spec.sign == "fixed":
            return grid
        unsigned = self._unsigned()
        if unsigned == _UNKNOWN:
            raise LowbitError(
                f"{self._who()}: whether it is ever negative (sign auto) is found out by calibration, which "
                "has not been done: call lowbit.calibrate(model, batches) first. Calibration evaluates the "
                "model: let the recipe skip layers that only training calls (match: {name: …}, skip: true)"
            )
        return parse_grid(f"uint{grid.bits}") if unsigned else grid

    @property
    def knows_sign(self) -> bool:
        """Whether `sign: auto` has been decided; always, where the sign is fixed or learned."""
        return self.spec.sign != "auto" or self._unsigned() != _UNKNOWN

    def set_sign(self, *, unsigned: bool) -> None:
        """Decides `sign: auto`."""
        self._buffers["unsigned"].set_value(paddle.full([1], int(unsigned), "int32"))

    def scale(self) -> Tensor | None:
        """The step between two values that evaluation uses; None where it is chosen anew in every call."""
        if self.step is not None:
            return at_least_smallest(self._known(self.step).value)
        if self.kept is not None:
            return scale_from_range(self._known(self.kept).range, self.grid())
        if self.has_fixed_scale:
            return scale_from_range(self.fixed.range, self.grid())
        return None

    # What a recipe may change in the course of a run: scales that become fixed, and bits.

    def keep_fixed_range(self) -> None:
        """Let a dynamic scale become one for the whole tensor that stays, once `fix_range` is called."""
        self.fixed = RunningRange(parse_scaling("fixed"), [1])

    @property
    def has_fixed_scale(self) -> bool:
        """Whether `fix_range` has been called, here or in the run that a checkpoint comes from."""
        return self.fixed is not None and self.fixed.is_known

    def fix_range(self, range_: Tensor) -> bool:
        """From now on this is the range; returns whether it is finite."""
        return self.fixed.restart(range_)

    def vary_bits(self) -> None:
        """Let `set_bits` change the bits; which are in use is in the state_dict."""
        self.register_buffer("bits", paddle.full([1], self.spec.grid.bits, "int32"))

    def set_bits(self, bits: int) -> None:
        """Quantize to so many bits from now on; scales have to be found again, by calibration."""
        self._buffers["bits"].set_value(paddle.full([1], bits, "int32"))
        for part in (self.step, self.offset, self.kept):
            if part is not None:
                part.forget()

    def _grid_in_bits(self) -> Grid:
        """The spec's grid with the bits in use."""
        varied = self._buffers.get("bits")
        return self.spec.grid if varied is None else self.spec.grid.in_bits(int(varied.item()))

    def set_scale(self, scale: Tensor) -> None:
        """Give evaluation another scale, one that was learned elsewhere; the spec must keep scales."""
        if self.step is not None:
            self.step.start(scale)
        elif self.kept is not None:
            self.kept.restart(scale * self.grid().highest)
        else:
            raise LowbitError(f"{self._who()} chooses its scale in every call ({self.spec}): none can be set")

    @property
    def is_plain(self) -> bool:
        """Whether calling it does what its settings say, and nothing else.

        Hooks, a class of the user's own, or a method that was replaced, are heard only if it is called.
        """
        if self._forward_pre_hooks or self._forward_post_hooks or not _METHODS.isdisjoint(vars(self)):
            return False
        return type(self).__module__.partition(".")[0] == __name__.partition(".")[0]

    @property
    def gives_integers(self) -> bool:
        """Whether what evaluation makes of a value is an integer times a scale."""
        return self.spec.grid.is_integer and self._calibration_stats is None and not self.only_shows_shapes

    @property
    def only_shows_shapes(self) -> bool:
        """Whether `paddle.summary` runs the model, in evaluation mode, before there are scales.

        The values do not matter then. Anyone else who evaluates a model without scales gets an error.
        """
        if self.training or not any(
            getattr(hook, "__module__", None) == _SUMMARY for hook in self._forward_post_hooks.values()
        ):
            return False
        return not self.is_ready

    @paddle.jit.not_to_static  # as forward
    def integers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The integers of evaluation, held in fp32, and their scale; plain operators without a gradient.

        >>> quantizer = Quantizer(TensorSpec(grid="int4"), "NC", "input", shape=[1, 2])
        >>> [part.tolist() for part in quantizer.eval().integers(paddle.to_tensor([[3.5, 1.2]]))]
        [[[7.0, 2.0]], [[0.5]]]
        """
        self.check_ready()
        grid = self.grid()
        with paddle.no_grad():
            if self.alpha is not None:
                x = pact_clip(x, self.alpha.value, signed=grid.signed)
            if self.step is not None:
                scale = at_least_smallest(self.step.value)
            else:
                kept = self.fixed if self.has_fixed_scale else self.kept
                range_ = (
                    kept.range
                    if kept is not None
                    else self.spec.observer.range(x, grid, self._axes(x, self.spec.granularity))
                )
                scale = scale_from_range(range_, grid)
            return quantize_to_integers(x, scale, grid), scale

    def values_and_scale(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What `forward` gives for integers in dynamic mode, and the scale that it is whole multiples of."""
        if not self.training:
            self.check_ready()
        if self.offset is not None:
            return self._with_offset(x)
        moving = self.moving_scale()
        if moving is not None and fits(x):
            return observed_fake_quantize(x, moving)
        grid = self.grid()
        kept_axes = self._axes(x, self._kept_granularity)
        alpha = None
        if self.alpha is not None:
            alpha = self._started(self.alpha, lambda: initial_alpha(x, grid, kept_axes))
        if self.step is not None:
            x = x if alpha is None else pact_clip(x, alpha, signed=grid.signed)
            step = self._started(self.step, lambda: initial_step(self.spec, x, grid, kept_axes))
            elements = self._elements(x)
            return lsq_fake_quantize(x, step, grid, elements=elements), at_least_smallest(step.detach())
        range_ = self._range(x, grid, self._axes(x, self.spec.granularity), alpha)
        scale = scale_from_range(range_, grid)
        if alpha is None:
            return fake_quantize(x, scale, grid), scale
        return pact_fake_quantize(x, alpha, scale, grid), scale

    def known_scale(self, x: Tensor) -> KnownScale | None:
        """The scale for `x` in training, where it is fixed; None where batches are observed or it learns."""
        if not self.training or self._calibration_stats is not None or self.kept is None:
            return None
        if self.spec.scaling.name != "fixed" or self.alpha is not None or self.spec.granularity.letters:
            return None
        grid = self.grid()
        if not fits(x) or not grid.has_every_integer:
            return None
        range_ = self._known(self.kept).range.reshape([1] * x.ndim)
        return KnownScale(scale_from_range(range_, grid), grid)

    def moving_scale(self) -> MovingScale | None:
        """What observes a batch and quantizes it in one call, in training; None where it takes more."""
        parts, spec = self._sub_layers, self.spec  # a Layer's __getattr__ takes microseconds
        kept, alpha = parts.get("kept"), parts.get("alpha")
        if not self.training or kept is None or self._calibration_stats is not None or "step" in parts:
            return None
        if spec.observer.name != "minmax" or spec.granularity.letters or self.has_fixed_scale:
            return None
        if alpha is not None and not alpha.is_known:
            return None
        return kept.moving_scale(None if alpha is None else alpha._parameters["value"], self.grid())

    def dynamic_operand(self, x: Tensor) -> tuple[Tensor, Tensor, int] | None:
        """The integers of `x`, their scales, the number of NaNs; None where the scale is kept or learned."""
        observer = self.spec.observer
        if not self._is_dynamic or observer.turns != 0:
            return None
        axes = self._axes(x, self.spec.granularity)
        return to_dynamic_bytes(x, self.grid(), axes, ratio=observer.ratio)

    @property
    def _is_dynamic(self) -> bool:
        """Whether, in training, a tensor alone decides about its scales."""
        if self.kept is not None or self.step is not None or self.alpha is not None or self.has_fixed_scale:
            return False
        return self.training and self._calibration_stats is None

    def _with_offset(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As values_and_scale, on a grid with a learned offset."""
        bits = self._grid_in_bits().bits
        offset = self._started(self.offset, lambda: lsq_plus_initial(x, bits)[1])
        step = self._started(self.step, lambda: lsq_plus_initial(x, bits)[0])
        y = lsq_plus_fake_quantize(x, step, offset, bits, elements=self._elements(x))
        return y, at_least_smallest(step.detach())

    def check_ready(self) -> None:
        """A LowbitError when something that evaluation needs has not been seen yet."""
        if self.spec.grid.is_integer:
            self.grid()
            for part in (self.alpha, self.step, self.offset, self.kept):
                if part is not None:
                    self._known(part)

    @property
    def is_ready(self) -> bool:
        """Whether `check_ready` passes: not for a layer that never ran."""
        try:
            self.check_ready()
        except LowbitError:
            return False
        return True

    def start_calibration(self) -> None:
        """From now on only look at what comes by, and let it through unchanged."""
        if self.spec.grid.is_integer:
            self._calibration_stats = CalibrationStats(
                self.spec,
                lambda x: self._axes(x, self._kept_granularity),
                grid=self._grid_in_bits(),
                wants_alpha=self.alpha is not None and not self.alpha.is_known,
                across_ranks=self._is_activation,
            )

    @property
    def calibration_stats(self) -> CalibrationStats | None:
        """What calibration has seen so far; None when none is going on."""
        return self._calibration_stats

    def end_calibration(self) -> None:
        """Start what is not known yet from what was seen; without a finite batch it stays unknown."""
        seen, self._calibration_stats = self._calibration_stats, None
        if seen is None or not seen.batches:
            return
        if not self.knows_sign:
            self.set_sign(unsigned=not seen.negative)
        if seen.wants_alpha:
            self.alpha.start(seen.mean("alpha"))
        if self.step is not None and not self.step.is_known:
            self.step.start(seen.mean("step"))
        if self.offset is not None and not self.offset.is_known:
            self.offset.start(seen.mean("offset"))
        if self.kept is not None and not self.kept.is_known:
            range_ = seen.range().reshape(self.kept.range.shape)
            if self.alpha is not None:
                range_ = paddle.minimum(range_, usable_bound(self.alpha.value))
            self.kept.update(range_)

    def extra_repr(self) -> str:
        return f"{self.spec}, {self.role}"

    def _range(
        self,
        x: Tensor,
        grid: Grid,
        axes: Sequence[int],
        bound: Tensor | None,
        known: ChannelRanges | None = None,
    ) -> Tensor:
        if self.has_fixed_scale:
            return self.fixed.range
        if self.kept is None:
            return self.spec.observer.range(x, grid, axes, bound=bound, known=known)
        if not self.training:
            return self.kept.range
        if self.spec.scaling.name == "fixed" and (self._is_activation or self.kept.is_known):
            return self._known(self.kept).range
        range_ = self.spec.observer.range(x, grid, axes, bound=bound, known=known)
        if self._is_activation:
            range_ = largest_across_ranks(range_)
        self.kept.update(range_)
        # Without one finite batch there is nothing to fall back on: the loss shall show it.
        return self.kept.range if self.kept.is_known else range_

    def _started(self, learned: LearnedScale, initial: Callable[[], Tensor]) -> Tensor:
        if learned.is_known or not self.training:
            return learned.value
        with paddle.no_grad():
            first = initial()
            first = (mean_across_ranks(first) if self._is_activation else first).reshape(learned.value.shape)
        return learned.value if learned.start(first) else first

    def _known(self, part: LearnedScale | RunningRange) -> LearnedScale | RunningRange:
        if not part.is_known:
            raise LowbitError(
                f"{self._who()} is to be quantized ({self.spec}), but no finite batch has been seen yet: "
                "train at least one step, call lowbit.calibrate(model, batches), or load a "
                "quantized checkpoint"
            )
        return part

    def _elements(self, x: Tensor) -> int | None:
        """How many values share a step, for the scale of its gradient; None: as many as `x` has."""
        if not self._per_image or -1 in x.shape:
            return None
        return max(1, math.prod(x.shape[1:]) // math.prod(self.step.value.shape))

    @property
    def _is_activation(self) -> bool:
        return self.role in ("input", "output")

    def _unsigned(self) -> int:
        return first_integer(self._buffers["unsigned"])

    def _axes(self, x: Tensor, granularity: Granularity) -> tuple[int, ...]:
        axes = len(x.shape)
        if not granularity.letters:
            return tuple(range(axes))
        layout = self._layout_of(axes)
        if axes != len(layout):
            raise LowbitError(
                f"{self._who()} has {axes} axes, for which the granularity {granularity} has no "
                "meaning: use per-tensor"
            )
        return granularity.reduced_axes(layout)

    def _layout_of(self, axes: int) -> str:
        if 0 < axes < len(self.layout) and self.role != "weight" and self.layout.endswith("C"):
            return self.layout[: axes - 1] + "C"
        if axes > len(self.layout) and self.layout == "NHWC":
            return f"N{'H' * (axes - 3)}WC"  # such as windows of windows, which a Linear layer takes too
        return self.layout

    def _round(self, x: Tensor) -> Tensor:
        grid = self.spec.grid
        if grid.storage is None or paddle.in_dynamic_mode():
            return round_to_grid(x, grid)
        return x.cast(grid.storage).cast(x.dtype)

    def _who(self) -> str:
        return f'the {self.role} of layer "{self.layer_name}"' if self.layer_name else f"this {self.role}"


def _without_leading_ones(shape: Sequence[int]) -> list[int]:
    """The shape that is broadcast alike, also against operands with other numbers of axes in front."""
    first = next((axis for axis, size in enumerate(shape) if size != 1), len(shape) - 1)
    return list(shape[first:])
