"""The demo as users start it: its steps are processes of their own; and what it does at its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from lowbit.demo import command as module
from lowbit.demo import steps as demo_steps
from lowbit.demo.command import NOTES, make_table
from lowbit.demo.steps import TRAININGS, bench_file, run_stages
from tests.support.commands import W4A4G4

ROOT = Path(__file__).parents[2]
TINY = ("-o", "Arch.name=tests.support.tiny_net:TinyNet", "-o", "Global.use_visualdl=false")


@pytest.fixture
def light(tmp_path, monkeypatch):
    """Two trainings of TinyNet, and a turn of small steps; all else is the demo's own."""
    fp32, *_, low = demo_steps.TRAININGS
    recipe = tmp_path / "tiny.yaml"  # the demo's own leaves the first and the last layer, TinyNet's all
    recipe.write_text(yaml.safe_dump(W4A4G4), "utf-8")
    trainings = (
        replace(fp32, epochs=2, options=TINY),
        replace(low, epochs=2, options=TINY, recipe=str(recipe), from_fp32=True),
    )
    monkeypatch.setattr(demo_steps, "TRAININGS", trainings)
    verify = demo_steps._verify

    def trusting(folder, training):  # the demo itself trusts no code: its network is lowbit's
        step = verify(folder, training)
        return replace(step, arguments=(*step.arguments, "--trust-code"))

    monkeypatch.setattr(demo_steps, "_verify", trusting)
    monkeypatch.setattr(demo_steps, "BENCH", ("resnet20", "--rounds", "1", "--batch-size", "2"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_whole_way_and_once_more(light, run, capsys):
    folder = Path("2024: demo")  # YAML would read something else in it
    result = run("lowbit", "demo", "--output-dir", folder)
    assert result.code == 0, result
    assert "1/6  Train fp32\n" in result.out
    assert "    Train W4A4G4 from fp32: products " in result.out  # in integers, or why not
    rows = {line.split()[0]: line.split() for line in result.out.splitlines() if "x" in line[-1:]}
    assert list(rows) == ["fp32", "W4A4G4"] and len(rows["fp32"]) == 9
    assert "360 validation images" in result.out
    assert f"Report      {folder}/report.html" in result.out
    assert (folder / "report.html").stat().st_size > 50_000
    for name in ("fp32", "w4a4g4"):
        assert (folder / name / "export" / "inference.onnx").is_file()
        verified = json.loads((folder / name / "verify.json").read_text())
        assert verified["passed"] and len(verified["engines"]) == 4
        sampled = [one["engine"] for one in verified["engines"] if one["images"] != 360]
        assert sampled == ([] if name == "fp32" else ["paddle"]), "as the notes below the table say"
        of_all = [engine for engine in verified["engines"] if engine["images"] == verified["images"]]
        deployed = min(engine["top1"] for engine in of_all)
        assert rows[{"fp32": "fp32", "w4a4g4": "W4A4G4"}[name]][2] == f"{deployed:.1%}"
    assert len(list((folder / "images").glob("*.png"))) == 8

    run_stages(demo_steps.make_stages(folder)[:2], at_once=2)
    assert capsys.readouterr().out.count("trained before") == 2
    assert not (folder / "fp32" / "earlier").exists()


def test_a_step_that_fails_is_the_demos_error(light, run, monkeypatch):
    broken = replace(demo_steps.TRAININGS[0], options=("-o", "Optimizer.name=Momentun"))
    monkeypatch.setattr(demo_steps, "TRAININGS", (broken,))
    result = run("lowbit", "demo")
    assert "Train fp32 failed (exit code 2)" in result.error
    assert "Momentun" in result.error
    assert not Path("runs/demo/report.html").exists()


@pytest.mark.slow
def test_the_demo_itself(tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("lowbit", "demo")
    assert result.code == 0, result
    for training in demo_steps.TRAININGS:
        verified = json.loads(Path("runs/demo", training.name, "verify.json").read_text())
        assert verified["passed"] and verified["model"]["top1"] > 0.95, training


@pytest.mark.parametrize(
    ("terminal", "variables", "opened"),
    [
        (True, {"DISPLAY": ":0"}, True),
        (True, {"WAYLAND_DISPLAY": "wayland-0"}, True),
        (True, {}, False),
        (False, {"DISPLAY": ":0"}, False),
    ],
)
def test_a_browser_only_where_somebody_sits(monkeypatch, terminal, variables, opened):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert module._has_display() is opened


ANSWERS = {"images": 360, "top5": 1.0, "max_difference": 0.0, "seconds": 1.0}
ENGINES = {"openvino": 0.991, "paddle": 1.0, "onnxruntime": 0.995, "lowbit": 1.0}  # and how often they agree


def _write(folder: Path, engines: list[str]) -> None:
    """What the demo's steps leave: the least accurate engine has 80 %."""
    for number, training in enumerate(TRAININGS):
        sizes = [
            {"format": "Paddle", "exported": 5_000_000, "fp32": None, "ratio": None},
            {"format": "ONNX", "exported": 400_000, "fp32": None, "ratio": 2.72 if number else None},
        ]
        verified = {
            "images": 360,
            "limit": 0.99,
            "passed": True,
            "model": {**ANSWERS, "top1": 0.95, "agreement": 1.0},
            "fp32": None,
            "integer_reference": None,
            "engines": [
                {
                    **ANSWERS,
                    **{"engine": key, "name": key, "wrong_layers": [], "latency": []},
                    **{"top1": 0.9 if place else 0.8, "agreement": ENGINES[key]},
                }
                for place, key in enumerate(engines)
            ],
            "sizes": sizes,
        }
        run = folder / training.name
        run.mkdir()
        (run / "verify.json").write_text(json.dumps(verified))
        (run / "config.yaml").write_text("Arch: {name: resnet20}\n")
        log = [{"kind": "eval", "step": epoch, "top1": top1} for epoch, top1 in enumerate((0.95, 0.9))]
        (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in log))
    rows = [{"side": one.side, "faster": 1 + index} for index, one in enumerate(TRAININGS)]
    bench_file(folder).write_text(json.dumps([{"rows": [{"side": "Paddle fp32", "faster": 1.0}, *rows]}]))


def _render(folder: Path) -> list[str]:
    """The table in a terminal of 80 columns."""
    console = Console(width=80)
    with console.capture() as capture:
        console.print(make_table(folder, TRAININGS))
    return [line.rstrip() for line in capture.get().splitlines()]


def _words(line: str) -> str:
    return " ".join(line.split())


def test_a_row_for_each_training(tmp_path):
    _write(tmp_path, list(ENGINES))
    lines = [_words(line) for line in _render(tmp_path)]
    assert lines[-4] == "fp32 95.0% 80.0% 100.0% 99.5% 99.1% 100.0% 0.40 1.00x"
    assert lines[-3] == "W8A8 PACT 95.0% 80.0% 100.0% 99.5% 99.1% 100.0% 0.40 2.7x 2.00x"
    assert [line.split()[0] for line in lines[-4:]] == ["fp32", "W8A8", "W4A4", "W4A4G4"]
    assert len(lines) == 6 and all(len(note) <= 80 for note in NOTES)


def test_all_engines_and_trainings_fit_80_columns(tmp_path):
    _write(tmp_path, list(ENGINES))
    lines = _render(tmp_path)
    assert "…" not in "".join(lines) and max(map(len, lines)) <= 80
    assert _words(lines[0]) == "top-1 top-1 agrees agrees agrees agrees ONNX times step"
    assert _words(lines[1]) == "training trained deployed Paddle ONNX RT OpenVINO lowbit MB smaller speed"
    for training, line in zip(TRAININGS, lines[2:], strict=True):
        assert line.startswith(f"{training.title} ")


@pytest.mark.parametrize("missing", ["openvino"])
def test_an_engine_that_is_not_installed_has_no_column(tmp_path, missing):
    _write(tmp_path, [key for key in ENGINES if key != missing])
    lines = [_words(line) for line in _render(tmp_path)]
    assert "OpenVINO" not in lines[1]
    assert lines[-4] == "fp32 95.0% 80.0% 100.0% 99.5% 100.0% 0.40 1.00x"
