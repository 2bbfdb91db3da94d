"""Commands and scripts run in this process, and a tiny trained and exported model to run them on."""

from __future__ import annotations

import re
import sys
import typing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
import yaml

from lowbit.cli.app import app, run_command, script_app
from lowbit.compat.scripts.export_infer import export_model, infer, onnx_infer
from lowbit.compat.scripts.post_quant import evaluate, post_quant
from lowbit.compat.scripts.train import train
from lowbit.compat.scripts.train_quantized import eval_qt, train_qat, train_qt
from lowbit.config import Config, validate
from lowbit.data import write_lite_data

COMMANDS: dict[str, typer.Typer] = {
    "lowbit": app,
    "train.py": script_app(train),
    "export_model.py": script_app(export_model),
    "infer.py": script_app(infer),
    "onnx_infer.py": script_app(onnx_infer),
    "post_quant.py": script_app(post_quant),
    "eval.py": script_app(evaluate),
    "train_qt.py": script_app(train_qt),
    "train_qat.py": script_app(train_qat),
    "eval_qt.py": script_app(eval_qt),
}
# A network and images so small that an epoch takes a few hundredths of a second.
SMALL = (
    *("--model=tests.support.tiny_net:TinyNet", "--epochs=1", "--batch-size=8", "--workers=2"),
    *("--crop-size=32", "--resize-size=36"),
)


@dataclass(frozen=True)
class Outcome:
    """What a user sees of a command: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The message of a command that the user can mend; before it are warnings, progress."""
        assert self.code == 2, self
        warnings, error, message = self.err.partition("error: ")
        assert error and all(line.startswith(("warning: ", "epoch ")) for line in warnings.splitlines()), self
        assert "Traceback" not in message
        return message.strip()


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys, monkeypatch) -> Run:
    """Runs a command as `main` does: `run("lowbit", "train", "-c", file)`."""

    def call(command: str, *arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", [command, *map(str, arguments)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setenv("GLOG_minloglevel", "2")
        capsys.readouterr()
        code = 0
        with warnings.catch_warnings():
            try:
                run_command(COMMANDS[command])
            except SystemExit as stop:
                code = stop.code or 0
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return call


@pytest.fixture
def asked(monkeypatch) -> list[tuple[Config, bool]]:
    """Training is left out; what it was asked for is in the list: the config, and whether the device was."""
    calls: list[tuple[Config, bool]] = []

    def record(config: Config, *, insist_on_device: bool = False, **_how: bool) -> Path:
        calls.append((config, insist_on_device))
        return Path(config.Global.output_dir)

    monkeypatch.setattr("lowbit.training.loop.train", record)
    return calls


@pytest.fixture(scope="session")
def lite(tmp_path_factory) -> Path:
    """16 training and 16 validation images of four classes."""
    return write_lite_data(tmp_path_factory.mktemp("cli") / "lite_data", tar=False)


def tiny_values(data: Path, output: Path) -> dict:
    """The config of a run of TinyNet on lite data."""

    def split(name: str, *ops: dict) -> dict:
        dataset = {"name": "AutoDataset", "path": str(data), "split": name}
        sampler = {"batch_size": 8, "shuffle": name == "train"}
        return {"dataset": dataset | {"transform_ops": [*ops, {"NormalizeImage": None}]}, "sampler": sampler}

    return {
        "Global": {"epochs": 1, "output_dir": str(output), "image_shape": [3, 32, 32], "use_visualdl": False},
        "Arch": {"name": "tests.support.tiny_net:TinyNet"},
        "DataLoader": {
            "Train": split("train", {"RandCropImage": {"size": 32}}),
            "Eval": split("val", {"ResizeImage": {"resize_short": 36}}, {"CropImage": {"size": 32}}),
        },
    }


def write_config(file: Path, values: dict) -> Path:
    file.write_text(yaml.safe_dump(values), "utf-8")
    return file


@pytest.fixture
def config_file(lite, tmp_path) -> Path:
    """A config of a tiny run into `run` beside it."""
    return write_config(tmp_path / "tiny.yaml", tiny_values(lite, tmp_path / "run"))


@pytest.fixture(scope="session")
def trained(lite, tmp_path_factory) -> Path:
    """The folder of a finished run, exported into its folder `export`; look, don't touch."""
    from lowbit.api.deploy import export_run
    from lowbit.training.loop import train

    folder = tmp_path_factory.mktemp("trained") / "run"
    values = tiny_values(lite, folder)
    values["Global"]["epochs"] = 3
    train(validate(values, {}, "tiny"))
    export_run(folder)
    return folder


W4A4G4 = {
    "quantization_manager": "qt_quantization_manager",
    "weight_config": {"qtype": "int4", "granularity": "N", "observer": "mse"},
    "input_config": {"qtype": "int4", "granularity": "N", "observer": "mse"},
    "grad_input_config": {"qtype": "int4", "granularity": "NHW", "stochastic": True},
    "grad_weight_config": {"qtype": "int4", "granularity": "NC", "stochastic": True},
}


@pytest.fixture(scope="session")
def low_precision(lite, tmp_path_factory) -> Path:
    """The folder of a finished run with gradients in 4 bits; look, don't touch."""
    from lowbit.training.loop import train

    values = tiny_values(lite, tmp_path_factory.mktemp("low_precision") / "run")
    values["Global"]["epochs"] = 3
    return train(validate(values | {"Recipe": W4A4G4}, {}, "tiny"))


STEP = re.compile(
    r"^\[Epoch \d+, iter: \d+\] top1: \d\.\d{5}, top5: \d\.\d{5}, lr: \d+\.\d{5}, loss: \d+\.\d{5}, "
    r"avg_reader_cost: \d+\.\d{5} sec, avg_batch_cost: \d+\.\d{5} sec, avg_samples: \d+\.\d, "
    r"avg_ips: \d+\.\d{5} images/sec\.$",
    re.MULTILINE,
)
ACCURACY = re.compile(r"^ \* Acc@1 \d\.\d{3} Acc@5 \d\.\d{3}$", re.MULTILINE)


LINE = re.compile(r"^image_name: \S+\.jpg, class_id: \d+, prob: \d\.\d{3}$")


SCRIPTS = {
    "train.py": train,
    "tools/export_model.py": export_model,
    "deploy/inference_python/infer.py": infer,
    "deploy/ptq_python/post_quant.py": post_quant,
    "deploy/ptq_python/eval.py": evaluate,
    "deploy/onnx_python/infer.py": onnx_infer,
    "tools/train_qt.py": train_qt,
    "tools/train_qat.py": train_qat,
    "tools/eval_qt.py": eval_qt,
}


def _options_of_commands() -> dict[str, set[str]]:
    """The options of every command and script, by the words it is called with."""
    found: dict[str, set[str]] = {}

    def visit(words: str, command: typing.Any) -> None:
        for name, below in getattr(command, "commands", {}).items():
            visit(f"{words} {name}", below)
        if not hasattr(command, "commands"):
            spellings = [word for p in command.params for word in (*p.opts, *p.secondary_opts)]
            found[words] = {word for word in spellings if word.startswith("-")}

    visit("lowbit", typer.main.get_command(app))
    for path, function in SCRIPTS.items():
        visit(f"python {path}", typer.main.get_command(script_app(function)))
    return found


OPTIONS = _options_of_commands()
