"""What a low-bit number is: grids, granularities, observers, scaling, rounding, quantizing, gradients."""

from lowbit.numerics.granularity import Granularity, parse_granularity
from lowbit.numerics.grid import BF16, FP16, FULL, Grid, grid_names, parse_grid, round_to_grid
from lowbit.numerics.health import Health, measure_health
from lowbit.numerics.lsq import lsq_fake_quantize, lsq_initial_step
from lowbit.numerics.observers import Observer, observer_names, parse_observer
from lowbit.numerics.pact import pact_clip, pact_fake_quantize, pact_initial_alpha
from lowbit.numerics.quantize import dequantize, fake_quantize, quantize_to_integers
from lowbit.numerics.range_state import Calibrated, MovingAverage, RangeState, Window
from lowbit.numerics.rotation import Rotation, hadamard, parse_rotation
from lowbit.numerics.rounding import Rounding, Stochastic, nearest, parse_rounding, rounding_names
from lowbit.numerics.scale import scale_from_range
from lowbit.numerics.scaling import Scaling, parse_scaling, scaling_names

__all__ = [
    "BF16",
    "FP16",
    "FULL",
    "Calibrated",
    "Granularity",
    "Grid",
    "Health",
    "MovingAverage",
    "Observer",
    "RangeState",
    "Rotation",
    "Rounding",
    "Scaling",
    "Stochastic",
    "Window",
    "dequantize",
    "fake_quantize",
    "grid_names",
    "hadamard",
    "lsq_fake_quantize",
    "lsq_initial_step",
    "measure_health",
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
]
