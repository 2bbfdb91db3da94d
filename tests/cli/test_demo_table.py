from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from lowbit.cli.demo_steps import TRAININGS, bench_file
from lowbit.cli.demo_table import NOTES, make_table

ANSWERS = {"images": 360, "top5": 1.0, "max_difference": 0.0, "seconds": 1.0}
ENGINES = {"openvino": 0.991, "paddle": 1.0, "onnxruntime": 0.995}  # and how often they agree


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
                    **{"engine": key, "name": key, "guilty": [], "latency": []},
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


def _lines(folder: Path) -> list[str]:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(make_table(folder, TRAININGS))
    return [" ".join(line.split()) for line in capture.get().splitlines() if line.strip()]


def test_a_row_for_each_training(tmp_path):
    _write(tmp_path, list(ENGINES))
    lines = _lines(tmp_path)
    assert lines[-4] == "fp32 95.0% 80.0% 100.0% 99.5% 99.1% 0.40 MB 1.00x"
    assert lines[-3] == "W8A8 PACT 95.0% 80.0% 100.0% 99.5% 99.1% 0.40 MB 2.7x 2.00x"
    assert [line.split()[0] for line in lines[-4:]] == ["fp32", "W8A8", "W4A4", "W4A4G4"]
    assert len(lines) == 6 and all(len(note) <= 80 for note in NOTES)


@pytest.mark.parametrize("missing", ["openvino"])
def test_an_engine_that_is_not_installed_has_no_column(tmp_path, missing):
    _write(tmp_path, [key for key in ENGINES if key != missing])
    lines = _lines(tmp_path)
    assert "OpenVINO" not in lines[1]
    assert lines[-4] == "fp32 95.0% 80.0% 100.0% 99.5% 0.40 MB 1.00x"
