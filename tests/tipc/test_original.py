"""The original's commands, and the planner held against them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowbit.tipc import StepKind, make_plan, original_commands, read_config
from tests.support.chains import CONFIGS, changed_text

OUT = "./test_tipc/output/mobilenet_v3_small"
LITE = "lite_train_lite_infer"


def _read(name: str):
    return read_config(CONFIGS / f"{name}.txt")


@pytest.mark.parametrize(
    ("name", "mode", "count"),
    [
        *[("norm", LITE, 10), ("pact", LITE, 10), ("amp", LITE, 10), ("fleet", LITE, 4)],
        *[("norm", "whole_infer", 3), ("pact", "whole_infer", 3), ("amp", "whole_infer", 3)],
        ("pact", "whole_train_whole_infer", 10),
    ],
)
def test_both_have_as_many_commands_as_is_known(name, mode, count):
    assert len(original_commands(_read(name), mode)) == count
    assert len(make_plan(_read(name), mode).steps) == count


def test_the_strings_of_a_run():
    train, evaluate, export, infer, *_ = original_commands(_read("amp"), LITE)
    run = f"{OUT}/{LITE}/amp_train_gpus_0_autocast_True_nodes_1"
    assert train == f"python3.7 train.py --amp_level=O2 --output-dir={run}.log --epochs=5   --batch-size=4"
    assert evaluate == (
        f"python3.7 train.py --test-only --pretrained={run}.log/latest.pdparams > {run}_eval.log 2>&1 "
    )
    assert export == (
        "python3.7 tools/export_model.py --model=mobilenet_v3_small "
        f"--pretrained={run}.log/latest.pdparams --save-inference-dir={run}.log > {run}_export.log 2>&1 "
    )
    assert infer == (
        f"python3.7 deploy/inference_python/infer.py --use-gpu=True --model-dir={run}.log --batch-size=1   "
        f"--benchmark=True > {OUT}/{LITE}/python_infer_gpu_batchsize_1.log 2>&1 "
    )
    assert original_commands(_read("fleet"), LITE)[0] == (
        "python3.7 -m paddle.distributed.launch --ips=192.168.0.1,192.168.0.2 --gpus=0,1 train.py "
        f"--output-dir={OUT}/{LITE}/fleet_train_gpus_0,1_autocast_False_nodes_2.log --epochs=5   "
        "--batch-size=4"
    )


def test_its_defects_are_kept(change):
    without_epochs = original_commands(_read("norm"), "lite_train_whole_infer")[0]
    assert "--epochs" not in without_epochs
    cut = original_commands(change("norm", {31: "--img-path:http://host/a.jpg"}), "whole_infer")[1]
    assert "--img-path=http --benchmark" in cut
    one_card_of_two_machines = original_commands(change("fleet", {4: "gpu_list:10.0.0.1,10.0.0.2;0"}), LITE)
    assert one_card_of_two_machines[0].startswith("python3.7 train.py ")
    commands = original_commands(_read("norm"), LITE)
    logs = [command.split(" > ")[1] for command in commands if "infer.py" in command]
    assert len(logs) == 4 and len(set(logs)) == 2


def _as_original(plan) -> list[list[str]]:
    """The planned arguments with the original's folder names, and without what the original forgets."""
    commands = []
    runs = {step.folder for step in plan.steps if step.kind == StepKind.TRAIN}
    for step in plan.steps:
        words = list(step.arguments)
        if plan.layout == 32:
            if step.kind in (StepKind.TRAIN, StepKind.EVAL):
                words = [word for word in words if not word.startswith(("--data-path=", "--device="))]
            elif step.kind == StepKind.INFER and plan.mode != "whole_infer":
                words = [word for word in words if not word.startswith("--img-path=")]
        for run in runs:
            words = [
                word.replace(run, f"{run}.log") if word.endswith(run) or f"{run}/" in word else word
                for word in words
            ]
        commands.append(words)
    return commands


def _arguments(command: str) -> list[str]:
    return shlex.split(command.split(" > ")[0])


@pytest.mark.parametrize("mode", [LITE, "whole_train_whole_infer", "whole_infer"])
@pytest.mark.parametrize("name", ["norm", "pact", "amp", "fleet", "generic"])
def test_the_plan_is_the_original_but_for_its_defects(name, mode):
    expected = [_arguments(command) for command in original_commands(_read(name), mode)]
    assert _as_original(make_plan(_read(name), mode)) == expected != []


def _lists(*words: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(words), min_size=1, max_size=2, unique=True).map("|".join)


_DEVICES = _lists("-1", "0", "1", "0,1", "2,3", "10.0.0.10,10.0.0.11;0,1")
_CHANGES_32 = st.fixed_dictionaries(
    {},
    optional={
        4: _DEVICES.map("gpu_list:{}".format),
        9: st.sampled_from(["--pretrained:null", "--pretrained:./a.pdparams", "null:null"]),
        17: st.sampled_from(["eval:null", "eval:eval.py -c 'a b'"]),
        22: st.sampled_from(["norm_export:null", "norm_export:tools/export.py"]),
        25: st.sampled_from(["infer_export:null", "infer_export:tools/export.py"]),
        28: _lists("True", "False", "cpu", "gpu").map("--use-gpu:{}".format),
        29: _lists("1", "2", "8").map("--batch-size:{}".format),
        32: st.sampled_from(["--benchmark:null", "--benchmark:False", "null:null"]),
    },
)
_CHANGES_51 = st.fixed_dictionaries(
    {},
    optional={
        4: _DEVICES.map("gpu_list:{}".format),
        5: st.sampled_from(["null:null", "Global.use_gpu:True|True|False", "--device:gpu|cpu|gpu"]),
        6: _lists("fp32", "amp", "null").map("Global.auto_cast:{}".format),
        10: st.sampled_from(["Global.pretrained_model:./a", "Global.pretrained_model:null"]),
        13: st.sampled_from(["null:null", "Global.extra:1"]),
        15: _lists("norm_train", "pact_train", "fpgm_train").map("trainer:{}".format),
        25: st.sampled_from(["null:null", "--more:1"]),
        36: st.sampled_from(["inference_dir:null", "inference_dir:Student"]),
        41: _lists("True", "False").map("--use_gpu:{}".format),
        42: _lists("True", "False", "null").map("--enable_mkldnn:{}".format),
        43: _lists("1", "6", "null").map("--cpu_threads:{}".format),
        45: _lists("True", "False", "null").map("--use_tensorrt:{}".format),
        46: _lists("fp32", "fp16", "int8", "null").map("--precision:{}".format),
        51: st.sampled_from(["null:null", "--more:x y"]),
    },
)
_CHANGED = st.one_of(
    st.tuples(st.sampled_from(["norm", "pact", "amp", "fleet"]), _CHANGES_32),
    st.tuples(st.just("generic"), _CHANGES_51),
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changed=_CHANGED, mode=st.sampled_from([LITE, "whole_train_whole_infer", "whole_infer"]))
def test_the_plan_follows_the_original_wherever_a_config_goes(tmp_path, changed, mode):
    name, lines = changed
    file = tmp_path / "c.txt"
    file.write_text(changed_text(name, {5: "use-gpu:True"} | lines if name != "generic" else lines))
    config = read_config(file)
    expected = [_arguments(command) for command in original_commands(config, mode)]
    assert _as_original(make_plan(config, mode)) == expected
