from __future__ import annotations

import pytest

from lowbit.deploy.autolog import STAGES, StageTimer


def test_only_what_is_inside_a_stage_is_counted(monkeypatch):
    clock = iter([10.0, 10.5, 20.0, 21.5, 30.0, 30.25])
    monkeypatch.setattr("lowbit.deploy.autolog.time.perf_counter", lambda: next(clock))
    timer = StageTimer()
    for stage in ("inference", "inference", "postprocess"):
        with timer.stage(stage):
            pass
    assert timer.seconds == {"preprocess": [], "inference": [0.5, 1.5], "postprocess": [0.25]}
    assert timer.mean("inference") == 1.0 and timer.mean("preprocess") == 0.0
    assert timer.total == 2.25
    assert timer.peak_memory > 2**20


def test_a_stage_that_failed_is_not_counted():
    timer = StageTimer()
    with pytest.raises(ZeroDivisionError), timer.stage("inference"):
        raise ZeroDivisionError
    assert timer.total == 0


def test_timers_do_not_share_their_lists():
    with StageTimer().stage("preprocess"):
        pass
    assert all(StageTimer().seconds[stage] == [] for stage in STAGES)
