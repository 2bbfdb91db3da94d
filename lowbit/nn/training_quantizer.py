"""The quantizer of low-precision training: one operand of a product as integers."""

from __future__ import annotations

from collections.abc import Sequence

from paddle import Tensor

from lowbit.nn.qtensor import QTensor, operand_of_sums, round_operand, with_axes_of
from lowbit.nn.quantizer import Quantizer
from lowbit.nn.scale_state import initial_alpha, initial_step, largest_across_ranks
from lowbit.numerics import Grid, Rounding, lsq_fake_quantize, pact_clip, scale_from_range
from lowbit.numerics.exact import as_float32
from lowbit.numerics.fused_groups import ChannelRanges, DynamicBytes, dynamic_bytes
from lowbit.numerics.scale import at_least_smallest


class TrainingQuantizer(Quantizer):
    """A Quantizer that also gives integers in training, whose backward pass is quantized, too.

    >>> quantizer = TrainingQuantizer(TensorSpec(grid="int4"), "NC", "input", shape=[1, 2])
    >>> quantizer.operand(paddle.to_tensor([[3.5, 1.2]])).data.tolist()
    [[7, 2]]
    """

    rounds_at_random = True

    def trained(self, x: Tensor) -> Tensor:
        """`x` behind what learns with it, LSQ's step or PACT's bound, and where nothing does `x` itself."""
        if (self.step is None and self.alpha is None) or self._calibration_stats is not None:
            return x
        grid, axes = self._grid_of(x), self._axes(x, self._kept_granularity)
        if self.alpha is not None:
            alpha = self._started(self.alpha, lambda: initial_alpha(x, grid, axes))
            x = pact_clip(x, alpha, signed=grid.signed)
        if self.step is not None:
            step = self._started(self.step, lambda: initial_step(self.spec, x, grid, axes))
            x = lsq_fake_quantize(x, step, grid, elements=self._elements(x))
        return x

    def operand(
        self,
        x: Tensor,
        roundings: Sequence[Rounding | None] = (None,),
        known: ChannelRanges | None = None,
    ) -> QTensor:
        """`x`, of which `trained` has been taken, as an operand: rounded to nearest, or as said.

        Of several roundings it is the mean: their integers are added up, and the scale is divided. Nothing of
        it has a gradient. `known` are the ranges of this same `x`.
        """
        unrounded = self.unrounded(x, roundings, known)
        if unrounded is not None:
            data, scale, nan_count = unrounded.compute()
            return operand_of_sums(data, scale, unrounded.grid, len(roundings), has_nan=nan_count > 0)
        x = as_float32(x.detach())
        if not self.spec.grid.is_integer:
            return QTensor(data=self._round(x))
        if self._calibration_stats is not None:
            self._calibration_stats.see(x)
            return QTensor(data=x)
        grid, rotation = self._grid_of(x), self.spec.rotation
        if not rotation:
            return round_operand(x, self._scale_for(x, grid, known), grid, roundings)
        channels = self._layout_of(len(x.shape)).index("C")
        x = rotation(x, channels)
        made = round_operand(x, self._scale_for(x, grid), grid, roundings)
        return QTensor(data=rotation(made.values(), channels))  # what is turned back is on no grid

    def unrounded(
        self, x: Tensor, roundings: Sequence[Rounding | None], known: ChannelRanges | None = None
    ) -> DynamicBytes | None:
        """`x` as kernels make `operand` of it, in one call; None where they do not."""
        spec = self.spec
        turns, ratio = spec.observer.turns, spec.observer.ratio
        if turns is None or not self._is_dynamic or not spec.grid.is_integer or spec.rotation:
            return None
        x = as_float32(x.detach())
        axes = self._axes(x, spec.granularity)
        return dynamic_bytes(x, self._grid_of(x), axes, roundings, turns=turns, ratio=ratio, known=known)

    def _grid_of(self, x: Tensor) -> Grid:
        """The grid for `x`; a sign that is not known yet is that of the first batch."""
        if self.spec.sign == "auto" and not self.knows_sign:
            negative = largest_across_ranks((x < 0).any().cast("float32"))
            self.set_sign(unsigned=not bool(negative))
        return self.grid()

    def _scale_for(self, x: Tensor, grid: Grid, known: ChannelRanges | None = None) -> Tensor:
        """The scale of every group of `x`, with as many axes as it has."""
        if self.step is not None:
            scale = at_least_smallest(self.step.value.detach())
        else:
            axes = self._axes(x, self.spec.granularity)
            if self.spec.scaling.name == "hindsight":
                range_ = self._range_in_hindsight(x, grid, axes, known)
            else:
                range_ = self._range(x, grid, axes, None, known)
            scale = scale_from_range(range_, grid)
        return with_axes_of(x, scale)

    def _range_in_hindsight(
        self, x: Tensor, grid: Grid, axes: Sequence[int], known_ranges: ChannelRanges | None
    ) -> Tensor:
        """The range of earlier batches; the first one has its own."""
        known, before = self.kept.is_known, self.kept.range.clone()
        now = self.spec.observer.range(x, grid, axes, known=known_ranges)
        self.kept.update(now)
        return before if known else now
