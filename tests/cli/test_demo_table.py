from __future__ import annotations

import json

from rich.console import Console

from lowbit.cli.demo_steps import TRAININGS, bench_file
from lowbit.cli.demo_table import NOTES, make_table


def test_a_row_for_each_training(tmp_path):
    for number, training in enumerate(TRAININGS):
        engines = [
            {"engine": key, "top1": 0.9 + number / 100, "agreement": agreement}
            for key, agreement in (("openvino", 0.991), ("paddle", 1.0), ("onnxruntime", 0.995))
        ]
        engines[0]["top1"] = 0.8
        sizes = [
            {"format": "Paddle", "exported": 5_000_000, "ratio": None},
            {"format": "ONNX", "exported": 400_000, "ratio": None if number == 0 else 2.72},
        ]
        run = tmp_path / training.name
        run.mkdir()
        (run / "verify.json").write_text(json.dumps({"engines": engines, "sizes": sizes}))
        (run / "config.yaml").write_text("Arch: {name: resnet20}\n")
        log = [{"kind": "eval", "epoch": epoch, "top1": top1} for epoch, top1 in enumerate((0.95, 0.9))]
        (run / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in log))
    rows = [{"side": one.side, "faster": 1 + index} for index, one in enumerate(TRAININGS)]
    bench_file(tmp_path).write_text(json.dumps([{"rows": [{"side": "Paddle fp32", "faster": 1.0}, *rows]}]))

    console = Console(width=80)
    with console.capture() as capture:
        console.print(make_table(tmp_path, TRAININGS))
    lines = [" ".join(line.split()) for line in capture.get().splitlines() if line.strip()]
    assert lines[-4] == "fp32 95.0% 80.0% 100.0% 99.5% 99.1% 0.40 MB 1.00x"
    assert lines[-3] == "W8A8 PACT 95.0% 80.0% 100.0% 99.5% 99.1% 0.40 MB 2.7x 2.00x"
    assert [line.split()[0] for line in lines[-4:]] == ["fp32", "W8A8", "W4A4", "W4A4G4"]
    assert len(lines) == 6 and all(len(note) <= 80 for note in NOTES)
