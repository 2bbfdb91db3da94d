"""How much of the processor other processes use."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lowbit.machine import load


@pytest.mark.parametrize(
    ("busy", "own", "fraction"),
    [
        ({"user": 3.0, "idle": 5.0}, 3.0, 0.0),  # all of it is this process's
        ({"user": 3.0, "nice": 2.0, "steal": 1.0, "idle": 1.0, "iowait": 1.0}, 2.0, 0.5),
        ({"user": 2.0, "idle": 6.0}, 2.5, 0.0),  # the two clocks are not the same
        ({}, 0.0, 0.0),  # no time has passed
    ],
)
def test_the_fraction_is_what_others_took(monkeypatch, busy, own, fraction):
    times = {"user": 100.0, "system": 7.0, "idle": 1000.0}
    clock = {"own": 50.0}
    monkeypatch.setattr(load.psutil, "cpu_times", lambda: SimpleNamespace(**times))
    monkeypatch.setattr(load.time, "process_time", lambda: clock["own"])
    others = load.OtherProcesses()
    for name, seconds in busy.items():
        times[name] = times.get(name, 0.0) + seconds
    clock["own"] += own
    assert others.fraction() == pytest.approx(fraction)


def test_of_this_machine():
    assert 0 <= load.OtherProcesses().fraction() <= 1
