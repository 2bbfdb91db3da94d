from __future__ import annotations

import itertools
import json

import paddle
import pytest
from typer.testing import CliRunner

from lowbit.bench import run
from lowbit.bench.layer_bench import LayerCase
from lowbit.bench.own_loop import OWN, TRAIN
from lowbit.bench.run import ratio, take_turns
from lowbit.bench.sides import Case
from lowbit.cli.app import app
from lowbit.errors import LowbitError
from lowbit.machine import hardware_info


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(run, "CASES", {"resnet20": Case("resnet20", 32, 4)})
    monkeypatch.setattr(run, "LAYERS", (LayerCase(8, 6),))


def test_figures_and_table(small, capsys):
    layer, step = run.run_bench(["layers", "resnet20"], rounds=1, threads=1, batch=2)
    shown = capsys.readouterr().out
    assert "batch 2" in step["title"] and step["title"] in shown and "W4A4G4" in shown
    assert {row["side"]: row["faster"] for row in step["rows"]}["Paddle fp32"] == 1
    assert (step["case"], step["threads"], step["instructions"]) == ("resnet20", 1, "all")
    assert layer["processor"] == step["processor"] == hardware_info().model
    assert step["fastest"] == min(step["rows"], key=lambda row: row["seconds"])["side"]
    assert f"fastest: {step['fastest']}" in shown
    assert all(row["least"] <= row["faster"] <= row["most"] for row in layer["rows"])
    assert all(row["share_of_ceiling"] is None or row["share_of_ceiling"] > 0 for row in layer["rows"])


def test_the_runtime_beside_other_engines(monkeypatch, capsys):
    if run.kernels() is None:
        pytest.skip("no kernels")
    monkeypatch.setattr(run.deployed, "MODELS", ("mobilenet_v3_small",))
    monkeypatch.setattr(run.deployed, "_SIDE", 64)
    monkeypatch.setattr(run.deployed, "_SECONDS", 1.0)
    (figure,) = run.run_bench(["runtime"], rounds=5, threads=1, batch=2)
    rows = {row["side"]: row for row in figure["rows"]}
    fp32 = [name for name in rows if name.endswith(" fp32")]
    assert figure["base"] == min(fp32, key=lambda name: rows[name]["seconds"])
    assert "ONNX Runtime fp32" in fp32 and "lowbit fp32" not in rows
    (own,) = [name for name in rows if name.startswith("lowbit ")]
    assert own in ("lowbit W7A8", "lowbit W8A8") and own.replace("lowbit", "ONNX Runtime") in rows
    assert list(figure["memory"]) == [own] and min(figure["memory"][own].values()) > 0
    shown = capsys.readouterr().out
    assert "batch 2" in shown and f"{own}: activations" in shown


def test_command(small, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = tmp_path / "figures.json"
    done = CliRunner().invoke(app, ["bench", "resnet20", "--rounds", "1", "--output", str(file)])
    assert done.exit_code == 0, done.output
    assert json.loads(file.read_text())[0]["base"] == "Paddle fp32"
    done = CliRunner().invoke(app, ["bench", "resnet2"])
    assert done.exit_code != 0 and 'did you mean "resnet20"' in str(done.exception)


def test_processor_time(small, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    seconds = iter(range(10000))
    monkeypatch.setattr(run.time, "process_time", lambda: next(seconds))
    (step,) = run.run_bench(["resnet20"], rounds=1, threads=1, batch=2, processor_time=True)
    assert {row["seconds"] for row in step["rows"]} == {1}
    done = CliRunner().invoke(app, ["bench", "resnet20", "--processor-time", "--threads", "2"])
    assert done.exit_code != 0 and "--threads 1" in str(done.exception)


def test_instructions(small, capsys):
    kernels = run.kernels()
    if kernels is None or "avx2" not in kernels.variants:
        pytest.skip("no kernels for AVX2")
    before = kernels.variant
    try:
        run.run_bench(["layers"], rounds=1, threads=1, batch=1, instructions="avx2")
    finally:
        kernels.select_variant(before)
    assert "kernels: avx2" in capsys.readouterr().out


def test_instructions_that_this_processor_does_not_have(small):
    if run.kernels() is None:
        pytest.skip("no kernels")
    with pytest.raises(LowbitError, match=r'no "mmx" to be held back to; it can run .*baseline'):
        run.run_bench(["layers"], rounds=1, threads=1, batch=1, instructions="mmx")


def test_a_loop_of_ones_own_against_lowbit_train(monkeypatch):
    monkeypatch.setitem(run.CASES, "tiny", Case("resnet20", 8, 4))
    before = paddle._C_ops.conv2d
    figures = run.run_bench(["tiny"], rounds=1, threads=1, batch=None, own_loop=True)
    assert [figure["title"].split(",")[0] for figure in figures] == ["fp32", "W4A4G4"]
    for figure in figures:
        assert figure["base"] == TRAIN
        assert [row["side"] for row in figure["rows"]] == [TRAIN, OWN]
        assert all(row["seconds"] > 0 for row in figure["rows"])
    assert paddle._C_ops.conv2d is before


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
