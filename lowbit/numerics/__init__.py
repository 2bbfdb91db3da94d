"""What a low-bit number is: grids, and rounding to them."""

from lowbit.numerics.grid import BF16, FP16, FULL, Grid, grid_names, parse_grid, round_to_grid

__all__ = ["BF16", "FP16", "FULL", "Grid", "grid_names", "parse_grid", "round_to_grid"]
