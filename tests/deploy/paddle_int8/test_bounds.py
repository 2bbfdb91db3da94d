from __future__ import annotations

import math

from lowbit.deploy.paddle_int8.integer_conv import value_bounds
from lowbit.deploy.paddle_int8.program import ProgramOp


def test_bounds_follow_values_that_are_moved_or_averaged():
    nodes = [
        ProgramOp("sigmoid", {"X": ["x"]}, {"Out": ["a"]}),
        ProgramOp("pool2d", {"X": ["a"]}, {"Out": ["b"]}),
        ProgramOp("hard_swish", {"X": ["x"]}, {"Out": ["c"]}),
        ProgramOp("reshape2", {"X": ["c"]}, {"Out": ["d"]}),
        ProgramOp("scale", {"X": ["c"]}, {"Out": ["e"]}),
    ]
    bounds = value_bounds(nodes)
    assert bounds["b"] == (0.0, 1.0)
    assert bounds["d"] == (-0.375, math.inf)
    assert "e" not in bounds and "x" not in bounds
