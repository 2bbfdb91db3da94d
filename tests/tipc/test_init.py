from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc import TRAIN_MODES, Machine, StepKind, make_plan, read_config
from lowbit.tipc.init import (
    CHAINS,
    SCRIPT_NAMES,
    Scripts,
    config_text,
    parse_chains,
    training_command,
    write_test_tipc,
)
from tests.support.commands import OPTIONS
from tests.support.runs import ROOT

SCRIPTS = Scripts(model="net", train="train.py --net=a", evaluate="e.py", export="x.py", infer="i.py")


@pytest.mark.parametrize("name", CHAINS)
def test_every_config_can_be_planned_in_every_mode(name, tmp_path):
    file = tmp_path / CHAINS[name].config
    file.write_text(config_text(SCRIPTS, name), "utf-8")
    assert len(file.read_text("utf-8").splitlines()) == 32
    config = read_config(file)
    for mode in (*TRAIN_MODES, "whole_infer"):
        plan = make_plan(config, mode, machine=Machine(on_cpu=True))
        assert plan.notes == ()
        kinds = [step.kind for step in plan.steps]
        assert kinds.count(StepKind.EXPORT) == (2 if mode != "whole_infer" and name != "fleet" else 1)
        quantized = {step.quantized for step in plan.steps if step.kind is StepKind.EXPORT}
        must = name in ("pact", "qt", "ptq") if mode != "whole_infer" else name == "ptq"
        assert quantized == {must}


def test_no_two_chains_share_a_folder():
    trainers = [chain.trainer for chain in CHAINS.values()]
    assert len(set(trainers)) == len({chain.page for chain in CHAINS.values()}) == len(trainers)


def test_training_commands():
    assert training_command(SCRIPTS, CHAINS["pact"]) == "train.py --net=a --pact_quant"
    low = training_command(SCRIPTS, CHAINS["qt"])
    assert low.startswith("tools/train_qt.py --net=a -c configs/lite.yaml --recipe recipes/qt_W4")


SHIPPED = ROOT / "test_tipc"
RATES = {"mobilenet_v3_small": 0.01, "resnet18": 0.002}  # with 0.01 and batches of 4, ResNet18 diverges


def _scripts(model: str, **more: str) -> Scripts:
    commands = {
        "train": f"train.py --model={model} --lr={RATES.get(model, 0.01)}",
        "evaluate": f"train.py --test-only --model={model}",
        "export": f"tools/export_model.py --model={model}",
        "infer": "deploy/inference_python/infer.py",
    }
    return Scripts(model=model, **commands | more)


def _files(folder):
    return {
        str(path.relative_to(folder)): path.read_text("utf-8")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "output" not in path.parts
    }


def test_what_is_shipped_is_what_init_writes(tmp_path):
    for model in RATES:
        write_test_tipc(tmp_path, _scripts(model), list(CHAINS))
    assert _files(tmp_path) == _files(SHIPPED)


def test_scripts_and_recipes_that_configs_name_exist():
    for config in SHIPPED.glob("configs/*/*.txt"):
        for name in re.findall(r"[\w/]+\.(?:py|yaml)\b", config.read_text("utf-8")):
            assert (ROOT / name).is_file(), f"{config}: {name}"


@pytest.mark.parametrize("page", sorted(SHIPPED.glob("**/*.md")), ids=lambda path: path.name)
def test_pages_can_be_followed(page):
    text = page.read_text("utf-8")
    assert "@" not in text
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        assert (page.parent / link).is_file()
    for block in re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for words in map(shlex.split, block.splitlines()):
            if words[0] == "bash":
                assert (ROOT / words[1]).is_file() and (ROOT / words[2]).is_file()
            elif words[0] == "lowbit":
                command = " ".join(words[: 3 if words[1] == "tipc" else 2])
                assert command in OPTIONS
                assert {word for word in words if word.startswith("--")} <= OPTIONS[command]


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_the_scripts_are_sound(name):
    subprocess.run(["bash", "-n", SHIPPED / name], check=True)


def test_a_second_model_joins_the_first(tmp_path):
    write_test_tipc(tmp_path, _scripts("one"), ["norm", "pact"])
    page = tmp_path / "docs/test_train_inference_python.md"
    page.write_text("mine", "utf-8")
    written = write_test_tipc(tmp_path, _scripts("two"), ["norm", "onnx"])
    assert page.read_text("utf-8") == "mine"
    assert sorted(str(path.relative_to(tmp_path)) for path in written) == [
        "README.md",
        "configs/two/paddle2onnx_infer_python.txt",
        "configs/two/train_infer_python.txt",
        "docs/test_paddle2onnx.md",
    ]
    readme = (tmp_path / "README.md").read_text("utf-8")
    assert "| model | training | PACT | ONNX |" in readme
    assert "| `one` | yes | yes |  |" in readme and "| `two` | yes |  | yes |" in readme
    assert write_test_tipc(tmp_path, _scripts("two"), ["norm", "onnx"]) == []


def test_a_readme_of_ones_own_stays(tmp_path):
    (tmp_path / "README.md").write_text("mine", "utf-8")
    write_test_tipc(tmp_path, _scripts("one"), ["norm"])
    assert (tmp_path / "README.md").read_text("utf-8") == "mine"


def test_a_config_that_was_changed_stays_unless_forced(tmp_path):
    write_test_tipc(tmp_path, _scripts("one"), ["norm"])
    with pytest.raises(LowbitError, match=r"train_infer_python.txt is there already, and different; --force"):
        write_test_tipc(tmp_path, _scripts("one", train="other.py"), ["norm"])
    write_test_tipc(tmp_path, _scripts("one", train="other.py"), ["norm"], force=True)
    config = tmp_path / "configs/one/train_infer_python.txt"
    assert "norm_train:other.py\n" in config.read_text("utf-8")


def test_names_of_chains():
    assert parse_chains("all") == list(CHAINS)
    assert parse_chains("pact, norm,pact") == ["pact", "norm"]
    with pytest.raises(LowbitError, match='no chain "pct"; did you mean "pact"'):
        parse_chains("norm,pct")
