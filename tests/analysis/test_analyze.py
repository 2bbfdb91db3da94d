"""The analysis as a whole: it finds a broken layer, and goes on where it stopped."""

from __future__ import annotations

import json

import pytest

from lowbit.analysis import analyze
from lowbit.analysis.sensitivity import add_batch
from lowbit.analysis.store import Store
from lowbit.nn.convert import quantized_layers


def _store(tmp_path, **settings) -> Store:
    return Store(tmp_path / "analysis.json", checkpoint="best.lowbit", digest="d", settings=settings)


@pytest.mark.parametrize("broken", ["first", "left", "right", "twice", "late", "head"])
@pytest.mark.parametrize("operand", ["weight_quantizer", "input_quantizer"])
def test_the_broken_layer_comes_first(model, loader, tmp_path, broken, operand):
    step = getattr(quantized_layers(model)[broken], operand).step.value
    step.set_value(step * 8)
    ranking = analyze(model, loader, _store(tmp_path), title="broken", fast=False).ranking
    assert ranking[0]["name"] == broken
    role = operand.split("_")[0]
    others = [row[f"{role}_sqnr"] for row in ranking[1:]]
    assert ranking[0][f"{role}_sqnr"] < min(others)
    assert ranking[0][f"{role}_dead"] > max(row[f"{role}_dead"] for row in ranking[1:])


def test_nothing_is_measured_twice_and_an_interruption_loses_one_batch(model, loader, tmp_path, monkeypatch):
    (tmp_path / "whole").mkdir()
    whole = analyze(model, loader, _store(tmp_path / "whole"), title="t", fast=False)

    calls = []

    def measured(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return add_batch(*arguments)

    monkeypatch.setitem(analyze.__globals__, "add_batch", measured)
    with pytest.raises(KeyboardInterrupt):
        analyze(model, loader, _store(tmp_path), title="t", fast=False)
    resumed = analyze(model, loader, _store(tmp_path), title="t", fast=False)
    assert resumed == whole
    assert len(calls) == 4  # the first, the interrupted one, and the two that were left
    assert analyze(model, loader, _store(tmp_path), title="t", fast=False) == whole
    assert len(calls) == 4
    analyze(model, loader, _store(tmp_path, images=7), title="t", fast=False)  # other settings
    assert len(calls) == 7


def test_a_new_checkpoint_of_the_same_name_drops_the_old_analyses(model, loader, tmp_path):
    analyze(model, loader, _store(tmp_path), title="old", fast=False)
    analyze(model, loader, _store(tmp_path, images=7), title="old too", fast=False)
    new = Store(tmp_path / "analysis.json", checkpoint="best.lowbit", digest="e", settings={})
    analyze(model, loader, new, title="new", fast=False)
    kept = json.loads((tmp_path / "analysis.json").read_text())["analyses"]
    assert [entry["title"] for entry in kept.values()] == ["new"]
