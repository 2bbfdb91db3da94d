from __future__ import annotations

import itertools

from lowbit.bench.run import ratio, take_turns


def test_sides_take_turns_in_turning_order_after_a_round_that_does_not_count():
    called = []
    sides = {name: (lambda name=name: called.append(name)) for name in "ab"}
    ticks = itertools.count()
    times = take_turns(sides, 3, clock=lambda: next(ticks))
    assert "".join(called) == "baabbaab"
    assert times == {"a": [1, 1, 1], "b": [1, 1, 1]}


def test_ratios_are_taken_round_by_round():
    times = {"slow": [2.0, 9.0, 4.0], "fast": [1.0, 3.0, 1.0]}  # the machine was busy in the second
    found = ratio(times, "slow", "fast")
    assert (found.median, found.least, found.most, found.rounds) == (3.0, 2.0, 4.0, 3)
