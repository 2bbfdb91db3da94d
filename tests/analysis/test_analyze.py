"""The analysis as a whole: it finds a broken layer, and goes on where it stopped."""

from __future__ import annotations

import json

import paddle
import pytest

from lowbit.analysis import analyze
from lowbit.analysis.analyze import Store, rank
from lowbit.analysis.operands import OperandView, view_operand
from lowbit.analysis.sensitivity import Sum, Sums, add_batch
from lowbit.errors import LowbitError
from lowbit.nn import preparation_of
from lowbit.nn.convert import quantized_layers
from lowbit.nn.qtensor import round_operand
from lowbit.numerics import parse_grid


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


def _view(values: list[float]) -> OperandView:
    x = paddle.to_tensor(values)
    return view_operand(x, round_operand(x, paddle.to_tensor([1.0]), parse_grid("int3")))


def test_layers_are_ordered_by_what_each_adds_alone(model):
    only = {"first": 1.0, "left": 1.5, "right": 1.0, "twice": 1.1, "late": 1.0, "head": 1.0}
    without = {name: 4.0 for name in only} | {"late": 2.0}
    sums = Sums(
        batches=1,
        images=2,
        full=Sum(2.0, 2),
        quantized=Sum(8.0, 0),
        only={name: Sum(2 * loss, 1) for name, loss in only.items()},
        without={name: Sum(2 * loss, 1) for name, loss in without.items()},
    )
    gradients = {
        "grad_input.grad_output": _view([0.4, 2.2, 9.0]),  # half of it lost
        "grad_weight.grad_output": _view([1.1, 2.0, 3.0]),
    }
    rows = rank(preparation_of(model), sums, {"left": OperandView()}, {}, {"left": gradients})
    assert [row["name"] for row in rows[:2]] == ["left", "twice"]
    left, late = rows[0], next(row for row in rows if row["name"] == "late")
    assert (late["only_loss"], late["without_loss"]) == (0.0, 2.0)
    assert (left["only_loss"], left["only_top1"], left["bits"]) == (0.5, 0.5, "W4A4")
    worse = gradients["grad_input.grad_output"]
    assert (left["gradient_sqnr"], left["gradient_dead"]) == (worse.health.sqnr, 5)
    assert left["gradient_clipped"] == worse.health.clipped > 0
    assert left["gradient_histograms"] == {
        "grad_input": worse.histogram.values(),
        "grad_weight": gradients["grad_weight.grad_output"].histogram.values(),
    }
    assert late["gradient_sqnr"] is None and late["gradient_histograms"] == {}
    assert left["weight_sqnr"] is None


def _entry(path, **more) -> Store:
    return Store(path, **{"checkpoint": "best.lowbit", "digest": "d", "settings": {"images": 3}} | more)


def test_an_entry_is_found_by_digest_and_settings_alone(tmp_path):
    file = tmp_path / "analysis.json"
    _entry(file).save(title="one")
    assert _entry(file).load()["title"] == "one"
    assert _entry(file, digest="e").load() is None
    assert _entry(file, settings={"images": 4}).load() is None


def test_other_checkpoints_keep_theirs(tmp_path):
    file = tmp_path / "analysis.json"
    _entry(file).save(title="one")
    _entry(file, checkpoint="latest.lowbit", digest="f").save(title="two")
    assert _entry(file).load()["title"] == "one"


def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path):
    file = tmp_path / "analysis.json"
    file.write_text("{")
    with pytest.raises(LowbitError, match="remove it"):
        _entry(file).load()
