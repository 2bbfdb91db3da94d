"""A small fixed part of the fuzzing; all of it: python benchmarks/fuzz_inputs.py"""

from __future__ import annotations

import pytest

from benchmarks.fuzz_inputs import KINDS, ROOT, case, fuzz

COUNTS = {"recipe": 75, "config": 75, "chain": 120, "checkpoint": 30}  # what takes longer is tried less often


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_taken_or_refused(kind, tmp_path):
    refused, failures = fuzz(kind, range(COUNTS[kind]), tmp_path)
    assert not failures, f"{kind}, seed {failures[0].seed}: {failures[0].error}"
    assert refused > COUNTS[kind] / 2, "the mutations must reach what is refused"


def test_an_exception_is_counted(monkeypatch, tmp_path):
    from lowbit import recipe

    def broken(path):
        raise KeyError(path)

    monkeypatch.setattr(recipe, "load_recipe", broken)
    refused, failures = fuzz("recipe", range(3), tmp_path)
    assert refused == 0 and [failure.seed for failure in failures] == [0, 1, 2]
    assert "KeyError" in failures[0].error


def test_cases_depend_on_the_seed_alone():
    samples = sorted((ROOT / "recipes").glob("*.yaml"))
    assert case("recipe", 5, samples) == case("recipe", 5, samples) != case("recipe", 6, samples)
