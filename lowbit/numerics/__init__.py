"""Grids, scales, rounding and fake quantization. Start with `grid` and `fake_quant`.

| module | has |
|---|---|
| `grid`, `granularity` | the representable values, the axes that own a scale |
| `observers`, `histogram_observers` | a range: minmax, clip_ratio, mse; percentile, kl, hist, sensitivity |
| `scale` | a scale from a range; when it is chosen (scaling); running ranges |
| `rounding` | nearest, stochastic, the counter-based random generator, powers of two |
| `fake_quant`, `lsq_plus` | quantize, dequantize, and the gradients: straight-through, LSQ, PACT; LSQ+ |
| `observed` | quantizing by a moving average of ranges, observed in the same call |
| `hadamard`, `stats` | rotation before quantizing; error, clipping and level histograms after it |
| `fused`, `fused_groups`, `exact` | the C++ kernels' front; fp32 operators rounded once, their twins |
| `lsq_plus` | LSQ+: a learned step and offset, grids with a zero point |
| `spec_parser` | words with a number in brackets |
"""

from lowbit.numerics.fake_quant import (
    dequantize,
    fake_quantize,
    lsq_fake_quantize,
    pact_clip,
    pact_fake_quantize,
    quantize_to_integers,
)
from lowbit.numerics.granularity import Granularity, parse_granularity
from lowbit.numerics.grid import BF16, FP16, FULL, Grid, grid_names, parse_grid, round_to_grid
from lowbit.numerics.hadamard import Rotation, hadamard_transform, parse_rotation
from lowbit.numerics.lsq_plus import (
    asymmetric_grid,
    lsq_plus_fake_quantize,
    lsq_plus_initial,
    zero_point_of,
)
from lowbit.numerics.observers import (
    Observer,
    lsq_initial_step,
    observer_names,
    pact_initial_alpha,
    parse_observer,
)
from lowbit.numerics.rounding import Rounding, Stochastic, nearest, parse_rounding, rounding_names
from lowbit.numerics.scale import (
    Calibrated,
    MovingAverage,
    RangeState,
    Scaling,
    Window,
    parse_scaling,
    scale_from_range,
    scaling_names,
)
from lowbit.numerics.stats import QuantStats, measure_stats

__all__ = [
    "BF16",
    "FP16",
    "FULL",
    "Calibrated",
    "Granularity",
    "Grid",
    "MovingAverage",
    "Observer",
    "QuantStats",
    "RangeState",
    "Rotation",
    "Rounding",
    "Scaling",
    "Stochastic",
    "Window",
    "asymmetric_grid",
    "dequantize",
    "fake_quantize",
    "grid_names",
    "hadamard_transform",
    "lsq_fake_quantize",
    "lsq_initial_step",
    "lsq_plus_fake_quantize",
    "lsq_plus_initial",
    "measure_stats",
    "nearest",
    "observer_names",
    "pact_clip",
    "pact_fake_quantize",
    "pact_initial_alpha",
    "parse_granularity",
    "parse_grid",
    "parse_observer",
    "parse_rotation",
    "parse_rounding",
    "parse_scaling",
    "quantize_to_integers",
    "round_to_grid",
    "rounding_names",
    "scale_from_range",
    "scaling_names",
    "zero_point_of",
]
