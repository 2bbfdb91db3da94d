"""No command imports a module because a checkpoint names it, unless the user says so."""

from __future__ import annotations

import sys

import paddle
import pytest

from lowbit.training.checkpoint import Checkpoint, Progress, save_checkpoint, save_for_ecosystem
from tests.support.commands import tiny_values, write_config
from tests.support.tiny_net import build_tiny

# At its top level the module leaves a trace, as harmful code would.
_MODULE = """
from pathlib import Path
Path("trace").touch()
from tests.support.tiny_net import TinyNet
"""


@pytest.fixture
def named(tmp_path, lite, monkeypatch):
    """A run folder whose checkpoint names a module of the current folder; its name."""
    module = "harmful_for_opening"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / f"{module}.py").write_text(_MODULE)
    config = tiny_values(lite, tmp_path / "run")
    config["Arch"]["name"] = f"{module}:TinyNet"
    write_config(tmp_path / "mine.yaml", config)
    model = build_tiny()
    optimizer = paddle.optimizer.Momentum(parameters=model.parameters())
    path = tmp_path / "run" / "checkpoints" / "best.lowbit"
    path.parent.mkdir(parents=True)
    write_config(tmp_path / "run" / "config.yaml", config)
    checkpoint = Checkpoint(
        model={name: tensor.numpy() for name, tensor in model.state_dict().items()},
        optimizer={},
        progress=Progress(),
        scaler={},
        config=config,
        model_name=config["Arch"]["name"],
        classes=[str(index) for index in range(4)],
        environment={},
        order={},
    )
    save_checkpoint(path, checkpoint)
    save_checkpoint(path.with_name("latest.lowbit"), checkpoint)
    save_for_ecosystem(path, model, optimizer)
    return config["Arch"]["name"]


@pytest.mark.parametrize(
    "command",
    [
        "lowbit eval run",
        "lowbit eval run/checkpoints/best.lowbit --table",
        "lowbit eval run -o Arch.name=true",
        "lowbit export run",
        "lowbit verify run",
        "lowbit analyze run",
        "eval_qt.py run",
        "export_model.py --pretrained run/checkpoints/best.pdparams",
        "post_quant.py --model_path run/checkpoints/best.pdparams --data run",
    ],
)
def test_no_command_imports_what_a_checkpoint_names(named, tmp_path, run, command):
    result = run(*command.split())
    assert result.code == 2 and "--trust-code" in result.error
    assert not (tmp_path / "trace").exists()


def test_a_report_goes_without_the_weights(named, tmp_path, run):
    result = run("lowbit", "report", "run")
    assert result.code == 0 and "--trust-code" in result.err
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("words", ["--trust-code", "-o Arch.name={}", "-c mine.yaml"])
def test_the_user_can_name_or_trust_the_code(named, tmp_path, run, words):
    result = run("lowbit", "eval", "run", *words.format(named).split())
    assert result.code == 0, result
    assert (tmp_path / "trace").exists()
