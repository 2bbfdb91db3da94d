from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from lowbit.errors import LowbitError
from lowbit.tipc import (
    ChainLimits,
    ChainResult,
    Machine,
    Status,
    make_plan,
    read_config,
    read_result,
    run_plan,
)
from tests.support.chains import changed_text, config_lines

LITE = "lite_train_lite_infer"


def _run(config: Path, limits: ChainLimits | None = None, mode: str = LITE) -> ChainResult:
    return run_plan(make_plan(read_config(config), mode), limits=limits)


def _statuses(result: ChainResult) -> list[str]:
    return [step.status.value for step in result.steps]


def _folder(config: Path) -> Path:
    return config.parents[3] / "test_tipc/output/stand_in" / LITE


def test_a_chain_that_does_its_work(repo, stand_in_model, capsys):
    result = _run(repo)
    assert result.passed and result.finished
    assert [step.kind for step in result.steps] == ["train", "eval", "export", "infer"]
    assert _statuses(result) == ["passed"] * 4
    assert [check.name for step in result.steps for check in step.checks] == [
        *("checkpoint", "weights", "loss", "learning", "accuracy", "loads"),
        *("class and probability", "the trained model's class"),
    ]
    folder = _folder(repo)
    assert read_result(folder / "train_infer_python") == result
    lines = (folder / "results_python.log").read_text("utf-8").splitlines()
    assert lines == [
        f" Run successfully with command - stand_in - {step.command}!  " for step in result.steps
    ]
    assert lines[0].startswith(
        f" Run successfully with command - stand_in - {sys.executable} stand_in.py train "
        f"--output-dir=./test_tipc/output/stand_in/{LITE}/norm_train_gpus_-1_autocast_False_nodes_1 "
    )
    assert "[4/4] infer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "failing", "reason"),
    [
        ("kill", "train", "ended by signal SIGKILL"),
        ("loss", "train", "loss: the last one is nan"),
        ("weights", "train", "weights: NaN or Inf in fc.weight of latest.pdparams"),
        ("checkpoint", "train", "checkpoint: no latest.pdparams in "),
        ("accuracy", "eval", "accuracy: Acc@1 nan"),
        (
            "remove",
            "export",
            "latest.pdparams is gone, which norm_train_gpus_-1_autocast_False_nodes_1_train",
        ),
        ("export", "export", "exported model: none written"),
        ("garbage", "infer", "class and probability: no line like `class_id: 8, prob: 0.909`"),
        ("prob", "infer", "class and probability: it printed prob: nan"),
        ("class", "infer", "trained, class 1 with 0.700; printed, class 2 with 0.900"),
    ],
)
def test_a_fault_fails_its_step_with_the_reason(repo, stand_in_model, monkeypatch, fault, failing, reason):
    monkeypatch.setenv("STAND_IN", fault)
    result = _run(repo)
    assert not result.passed
    [failed] = [step for step in result.steps if step.status is Status.FAILED]
    assert failed.kind == failing
    assert reason in failed.reason
    for step in result.steps:
        if step.status is Status.NOT_RUN:
            assert step.reason.startswith("needs norm_train_gpus_-1_autocast_False_nodes_1_")
    log = (_folder(repo) / "results_python.log").read_text("utf-8")
    assert log.count(" Run failed with command - stand_in - ") == 1
    suite = ET.parse(_folder(repo) / "train_infer_python/results.xml").getroot()[0]
    assert suite.get("failures") == "1" and suite.get("tests") == "4"
    assert reason in next(suite.iter("failure")).get("message")


def test_the_51_line_layout(repo, stand_in_model):
    """The same stand-ins, asked in the other layout's way; `latest` stands for latest.pdparams."""
    lines = config_lines("generic")
    keys = {8: "--output-dir", 28: "--save-inference-dir", 29: "--pretrained", 48: "--img-path"}
    commands = {16: "train", 24: "eval", 30: "export", 40: "infer"}
    changes = {number: f"{key}:{lines[number - 1].partition(':')[2]}" for number, key in keys.items()}
    changes |= {n: f"{lines[n - 1].partition(':')[0]}:stand_in.py {word}" for n, word in commands.items()}
    changes |= {3: f"python:{sys.executable}", 4: "gpu_list:-1", 5: "null:null", 12: "dir:./demo.jpg"}
    changes |= {6: "null:null", 15: "trainer:norm_train", 41: "--use_gpu:False", 42: "--mkldnn:False"}
    changes |= {10: "--pretrained:null", 43: "--threads:1", 44: "--batch:1", 46: "--precision:fp32"}
    repo.write_text(changed_text("generic", changes), "utf-8")
    result = _run(repo)
    assert _statuses(result) == ["passed"] * 4
    assert result.layout == 51


def test_what_needs_a_failed_step_is_not_run_and_the_rest_is(repo, stand_in_model, monkeypatch):
    monkeypatch.setenv("STAND_IN", "kill")
    assert _statuses(_run(repo)) == ["failed", "not run", "not run", "not run"]
    monkeypatch.setenv("STAND_IN", "accuracy")
    assert _statuses(_run(repo)) == ["passed", "failed", "passed", "passed"]


def test_a_checkpoint_of_an_earlier_run_does_not_count(repo, stand_in_model, monkeypatch):
    whole = "whole_train_whole_infer"
    assert _run(repo, mode=whole).passed
    monkeypatch.setenv("STAND_IN", "checkpoint")
    failed = _run(repo, mode=whole).steps[0]
    assert failed.reason == "checkpoint: latest.pdparams is of an earlier run: this one wrote none"


def test_an_earlier_run_on_lite_data_makes_room(repo, stand_in_model):
    _run(repo)
    [folder] = _folder(repo).glob("norm_train_*/")
    (folder / "model_4.pdparams").write_text("large", "utf-8")
    assert _run(repo).passed
    assert not (folder / "model_4.pdparams").exists()


def test_a_model_that_is_not_what_was_trained_fails_the_export(repo, stand_in_model):
    from lowbit.tipc import Check

    stand_in_model.append(Check("same answers as trained", False, "largest difference 3"))
    result = _run(repo)
    assert _statuses(result) == ["passed", "passed", "failed", "not run"]
    assert result.steps[2].reason == "same answers as trained: largest difference 3"


def test_a_full_disk(repo, stand_in_model, monkeypatch):
    """A file that cannot grow stands in for it: writing ends with an error in the middle."""
    monkeypatch.setenv("STAND_IN", "disk")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then it is an error of the call, as ENOSPC is
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        result = _run(repo)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert result.steps[0].status is Status.FAILED
    assert "exit code 1: OSError: [Errno 27] File too large" in result.steps[0].reason


def test_a_disk_that_is_full_is_named(repo, stand_in_model, monkeypatch):
    monkeypatch.setenv("STAND_IN", "kill")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    assert _run(repo).steps[0].reason.endswith("(out of memory, or killed): the disk is full")


def test_results_that_cannot_be_written_fail_the_chain(repo, stand_in_model, monkeypatch, capsys):
    def full(result: ChainResult) -> None:
        raise LowbitError("cannot write results.json: the disk is full")

    monkeypatch.setattr("lowbit.tipc.run.write_result", full)
    result = _run(repo)
    assert _statuses(result) == ["passed"] * 4
    assert not result.passed
    assert capsys.readouterr().err.count("warning: cannot write results.json: the disk is full") == 1


def test_skipped_steps_are_counted_and_nothing_run_is_no_success(repo, stand_in_model):
    text = repo.read_text("utf-8")
    repo.write_text(text.replace("gpu_list:-1", "gpu_list:-1|0"), "utf-8")
    plan = make_plan(read_config(repo), LITE, machine=Machine(cards=0))
    result = run_plan(plan)
    assert result.passed
    assert result.counts == {"passed": 4, "failed": 0, "skipped": 4, "not run": 0}
    assert "needs card 0; Paddle sees no card here" in result.steps[4].reason
    repo.write_text(text.replace("gpu_list:-1", "gpu_list:0"), "utf-8")
    nothing = run_plan(make_plan(read_config(repo), LITE, machine=Machine(cards=0)))
    assert nothing.counts["skipped"] == 4
    assert not nothing.passed


def _gone(pids: Path) -> bool:
    found = pids.read_text("utf-8").split()
    assert found, "no process was started"
    return not any(_is_alive(int(pid)) for pid in found)


def _is_alive(pid: int) -> bool:
    """A zombie is dead: only its parent, which may be init by now, has not asked for its exit code."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_hung_step_is_ended_with_its_children(repo, stand_in_model, monkeypatch, tmp_path):
    monkeypatch.setattr("lowbit.tipc.process._GRACE", 0.3)
    monkeypatch.setenv("STAND_IN", "hang")
    monkeypatch.setenv("STAND_IN_PIDS", str(tmp_path / "pids"))
    for limit in (2.0, 10.0, 60.0):  # on a busy machine a step may be ended before it has started anything
        result = _run(repo, ChainLimits(step=limit))
        assert _statuses(result) == ["failed", "not run", "not run", "not run"]
        assert result.steps[0].reason == f"not done after {limit:g} s"
        if (tmp_path / "pids").is_file():
            break
    assert _gone(tmp_path / "pids")


def test_the_time_for_all_steps(repo, stand_in_model, monkeypatch, tmp_path):
    monkeypatch.setattr("lowbit.tipc.process._GRACE", 0.3)
    monkeypatch.setenv("STAND_IN", "hang")
    monkeypatch.setenv("STAND_IN_PIDS", str(tmp_path / "pids"))
    repo.write_text(repo.read_text("utf-8").replace("gpu_list:-1", "gpu_list:-1|-1"), "utf-8")
    result = _run(repo, ChainLimits(total=2.0))
    assert result.steps[4].status is Status.NOT_RUN
    assert result.steps[4].reason == "the 2 s for all steps are over"


def test_a_process_left_behind_is_ended_and_named(repo, stand_in_model, monkeypatch, tmp_path):
    monkeypatch.setenv("STAND_IN", "orphan")
    monkeypatch.setenv("STAND_IN_PIDS", str(tmp_path / "pids"))
    result = _run(repo)
    assert result.passed
    assert result.steps[0].notes == ("it left 1 processes behind, which were ended",)
    assert _gone(tmp_path / "pids")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_a_consistent_result_and_no_process(repo, tmp_path, number):
    pids = tmp_path / "pids"
    command = [sys.executable, "-m", "lowbit", "tipc", "run", str(repo), LITE, "--device", "cpu"]
    variables = {**os.environ, "STAND_IN": "hang", "STAND_IN_PIDS": str(pids)}
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
    while process.poll() is None and not (pids.is_file() and pids.read_text("utf-8")):
        time.sleep(0.05)
    process.send_signal(number)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert _gone(pids)
    values = json.loads((_folder(repo) / "train_infer_python/results.json").read_text("utf-8"))
    assert values["interrupted"] and values["finished"] and not values["passed"]
    assert [step["status"] for step in values["steps"]] == ["failed", "not run", "not run", "not run"]
    assert {step["reason"] for step in values["steps"]} == {"interrupted"}
    assert "Interrupted." in out


def test_an_interpreter_that_is_not_here(repo):
    plan = make_plan(read_config(repo), LITE, python="python-nowhere")
    with pytest.raises(
        LowbitError, match=r'"python-nowhere" of .* is not on the PATH; name one with --python'
    ):
        run_plan(plan)
    assert not _folder(repo).exists()
