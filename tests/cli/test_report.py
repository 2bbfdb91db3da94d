"""`lowbit report` on a run that was trained."""

from __future__ import annotations

import json
import re
import shutil


def test_a_report_has_curves_and_the_weights_on_their_grid(run, low_precision, trained, tmp_path):
    file = tmp_path / "report.html"
    found = run("lowbit", "report", trained, low_precision, "--output", file)
    assert found.code == 0 and str(file) in found.out and found.err == ""
    block = re.search(r'id="data">(.*?)</script>', file.read_text("utf-8"), re.DOTALL)[1]
    data = json.loads(block)
    assert [curve["id"] for curve in data["curves"]] == ["loss", "top1", "lr", "speed"]
    assert len(data["curves"][0]["series"][0]["x"]) == 3
    fp32, quantized = data["layers"]
    assert "lowest" not in fp32["weights"][0]
    weights = quantized["weights"][quantized["names"].index("conv")]
    assert (weights["lowest"], weights["highest"]) == (-8, 7)
    operand = quantized["operands"][quantized["names"].index("conv")]["forward.weight"]
    assert len(operand["scale"]) == len(operand["sqnr"]) == 3


def test_the_page_goes_into_the_run_and_a_lost_model_is_said(run, low_precision, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(low_precision, folder)
    for checkpoint in (folder / "checkpoints").iterdir():
        checkpoint.unlink()
    found = run("lowbit", "report", folder)
    assert found.code == 0 and "no histograms of the weights" in found.err
    assert (folder / "report.html").is_file()
    assert "no run folder" in run("lowbit", "report", tmp_path).error
