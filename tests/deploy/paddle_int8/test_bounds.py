from __future__ import annotations

import math

from lowbit.deploy.paddle_int8.integer_conv import value_bounds
from lowbit.deploy.paddle_int8.program import Op


def test_bounds_follow_values_that_are_moved_or_averaged():
    nodes = [
        Op("sigmoid", {"X": ["x"]}, {"Out": ["a"]}),
        Op("pool2d", {"X": ["a"]}, {"Out": ["b"]}),
        Op("hard_swish", {"X": ["x"]}, {"Out": ["c"]}),
        Op("reshape2", {"X": ["c"]}, {"Out": ["d"]}),
        Op("scale", {"X": ["c"]}, {"Out": ["e"]}),
    ]
    bounds = value_bounds(nodes)
    assert bounds["b"] == (0.0, 1.0)
    assert bounds["d"] == (-0.375, math.inf)
    assert "e" not in bounds and "x" not in bounds
