from __future__ import annotations

import json

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc import Status
from lowbit.tipc.result import read_values
from tests.tipc.results import FULL, chain, step


def test_when_a_chain_has_passed():
    good, skipped = step("a"), step("b", Status.SKIPPED)
    assert chain(good, skipped).passed
    assert not chain(skipped).passed  # nothing was shown
    assert not chain().passed
    assert not chain(good, step("c", Status.FAILED)).passed
    assert not chain(good, step("c", Status.NOT_RUN)).passed
    assert not chain(good, finished=False).passed
    assert not chain(good, interrupted=True).passed
    assert not chain(good, unwritten="the disk is full").passed


def test_counts_name_every_status():
    assert FULL.counts == {"passed": 1, "failed": 1, "skipped": 1, "not run": 1}


def test_a_step_is_replaced():
    assert [one.status.value for one in FULL.with_step(1, step("b")).steps[:2]] == ["passed", "passed"]


def test_values_are_json_and_come_back():
    values = json.loads(json.dumps(FULL.values()))
    assert values["passed"] is False and values["counts"]["skipped"] == 1
    assert read_values(values, "r.json") == FULL


@pytest.mark.parametrize("damage", [None, [], {}, {"steps": [{}]}, {**FULL.values(), "more": 1}])
def test_other_values(damage):
    with pytest.raises(LowbitError, match=r"^r\.json is not a result of lowbit tipc run"):
        read_values(damage, "r.json")


def test_what_could_not_be_checked():
    assert FULL.steps[0].unchecked == ("weights: no .pdparams",)
