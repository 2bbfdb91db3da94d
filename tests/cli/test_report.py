"""`lowbit report` on a run that was trained."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path

from tests.support.fake_run import write_run


def test_a_report_has_curves_and_the_weights_on_their_grid(run, low_precision, trained, tmp_path):
    file = tmp_path / "report.html"
    found = run("lowbit", "report", trained, low_precision, "--output", file)
    assert found.code == 0 and str(file) in found.out and found.err == ""
    block = re.search(r'id="data">(.*?)</script>', file.read_text("utf-8"), re.DOTALL)[1]
    data = json.loads(block)
    # Images a second are left out if other processes used the processor.
    assert [curve["id"] for curve in data["curves"]][:3] == ["loss", "top1", "lr"]
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


def test_a_run_folder_that_cannot_be_written_to(run, low_precision, tmp_path, monkeypatch):
    folder = tmp_path / "copy"
    shutil.copytree(low_precision, folder)
    (tmp_path / "file").write_text("")
    assert (
        "cannot write" in run("lowbit", "report", folder, "--output", tmp_path / "file" / "page.html").error
    )

    def read_only(*_args, **_options):
        raise OSError(errno.EROFS, "Read-only file system")

    for function in ("write_text", "unlink"):
        monkeypatch.setattr(Path, function, read_only)
    message = f"cannot write {folder / 'report.html'}: Read-only file system"
    assert run("lowbit", "report", folder).error == message
    message = f"cannot write {folder / 'analysis.json'}: Read-only file system"
    assert run("lowbit", "analyze", folder, "--images", 8).error.endswith(message)


def test_a_folder_whose_name_is_not_in_utf_8(run, low_precision, tmp_path):
    folder = tmp_path / "run\udcff"
    shutil.copytree(low_precision, folder)
    found = run("lowbit", "compare", low_precision, folder)
    assert found.code == 0 and "run\\udcff" in found.out, found
    assert "cannot be encoded in UTF-8" in run("lowbit", "report", folder).error


def test_runs_stand_side_by_side(run, tmp_path):
    runs = [write_run(tmp_path / "one", epochs=2), write_run(tmp_path / "two", epochs=3, seed=5)]
    found = run("lowbit", "compare", *runs)
    lines = {line.split("  ")[0]: line.split() for line in found.out.splitlines()}
    assert lines["epochs"] == ["epochs", "2", "3"]
    assert lines["Global.epochs"] == ["Global.epochs", "2", "3"]
    assert lines["Global.seed"] == ["Global.seed", "0", "5"]
    assert lines["same class, onnxruntime"][-4:] == ["99.50", "%", "99.50", "%"]
    as_json = json.loads(run("lowbit", "compare", *runs, "--json").out)
    assert as_json["figures"]["two"]["epochs"] == "3"
    assert as_json["config"]["Global.seed"] == ["0", "5"]


def test_one_run_is_nothing_to_compare(run, tmp_path):
    folder = write_run(tmp_path / "one")
    assert "two runs or more" in run("lowbit", "compare", folder).error
