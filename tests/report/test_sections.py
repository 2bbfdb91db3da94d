"""Sections of tables and text."""

from __future__ import annotations

import json
import re

from lowbit.report import open_run, open_runs, sections
from tests.support.fake_run import write_run


def test_commands_are_those_of_the_run(tmp_path):
    run = open_run(write_run(tmp_path / "my run"))
    assert sections.reproduce(run) == [
        "lowbit train -c 'my config.yaml'",
        f"lowbit train -c '{run.path}'/config.yaml --output-dir '{run.path}'-again",
        f"lowbit verify '{run.path}' --images 200",
    ]
    run.record["command"][0] = "train.py"
    assert sections.reproduce(run)[0].startswith("python train.py ")
    run.record["command"][0] = "__main__.py"
    assert sections.reproduce(run)[0].startswith("python -m lowbit ")


def test_the_sickest_gradient_comes_first(tmp_path):
    run = open_run(write_run(tmp_path / "run", layers=12))
    run.of_kind("health")[-1]["layers"]["layers.7.conv"]["grad_input.grad_output"]["sqnr"] = -3.0
    text = sections.gradients([run])
    assert re.findall(r'<th scope="row">(.*?)</th>', text)[0] == "layers.7.conv"
    assert "16 more of run" in text
    assert text.count("grad_weight") + text.count("grad_input") == 24


def test_what_there_is_not_has_no_section(tmp_path):
    folder = write_run(tmp_path / "run", verified=False)
    (folder / "plan.json").unlink()
    run = open_run(folder)
    assert sections.plans([run]) == sections.sensitivities([run]) == ""


def test_it_is_said_why_there_is_no_throughput(tmp_path):
    runs = open_runs([write_run(tmp_path / name) for name in ("idle", "busy", "old")])
    assert sections.throughput_note(runs) == ""
    for record in runs[1].of_kind("train"):
        record["other_processes"] = 0.5
    for record in runs[2].of_kind("train"):
        del record["other_processes"]
    text = sections.throughput_note(runs)
    assert "busy (other processes used 50 % of the processor); not recorded for old." in text


def test_the_plan_says_how_each_operand_is_quantized(tmp_path):
    text = sections.plans([open_run(write_run(tmp_path / "run"))])
    assert text.count("int4 NHW stochastic") == 6
    assert text.count("forward, grad_input<") == 3
    assert ">note<" not in text  # a column without a word is left out


def test_what_analyze_found_is_shown_when_it_is_finished(tmp_path):
    folder = write_run(tmp_path / "run")
    row = {"name": "conv", "bits": "W4A4", "only_loss": 0.5, "without_loss": 0.25, "only_top1": 0.75}
    row |= {"weight_sqnr": 18.0, "input_sqnr": None, "input_histogram": None}
    analyses = {
        "a": {"title": "best on 8 images", "ranking": [row]},
        "b": {"title": "half of it", "sums": {}},
    }
    (folder / "analysis.json").write_text(json.dumps({"format": 1, "analyses": analyses}))
    text = sections.sensitivities([open_run(folder)])
    assert "best on 8 images" in text and "half of it" not in text
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", text)[-7:]
    assert cells == ["conv", "W4A4", "+0.5000", "-0.2500", "75.00 %", "18.0 dB", "–"]  # noqa: RUF001
    row["gradient_sqnr"] = 9.25  # of a run in low precision
    (folder / "analysis.json").write_text(json.dumps({"format": 2, "analyses": analyses}))
    text = sections.sensitivities([open_run(folder)])
    assert "SQNR of gradient" in text and text.count("9.2 dB") == 1
