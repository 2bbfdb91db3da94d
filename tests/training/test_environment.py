from __future__ import annotations

import json

import numpy
import paddle

from lowbit.training.resume import environment_differences, environment_record


def test_the_record_is_plain_and_repeats():
    record = environment_record()
    assert record == environment_record()
    assert json.loads(json.dumps(record)) == record
    assert paddle.__version__ in record["paddle"] and record["numpy"] == numpy.__version__
    assert environment_differences(record) == []


def test_what_changes_bits_changes_the_record(monkeypatch):
    monkeypatch.delenv("MKL_DEBUG_CPU_TYPE", raising=False)
    saved = environment_record()
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "5")
    differences = environment_differences(saved)
    assert "MKL_DEBUG_CPU_TYPE was unset, is 5" in differences
    assert f"OMP_NUM_THREADS was {saved['OMP_NUM_THREADS']}, is 7" in differences
    assert len(differences) == 2


def test_a_key_on_one_side_only_is_a_difference():
    assert environment_differences({}, {"cpu": "x"}) == ["cpu was not recorded, is x"]
    assert environment_differences({"cpu": "x"}, {}) == ["cpu was x, is not recorded"]
