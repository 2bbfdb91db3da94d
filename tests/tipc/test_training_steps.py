from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc import ChainPlan, Machine, Step, StepKind, make_plan

OUT = "./test_tipc/output/mobilenet_v3_small/lite_train_lite_infer"
CPU = Machine(on_cpu=True)


def _plan(config, machine: Machine | None = None) -> ChainPlan:
    return make_plan(config, "lite_train_lite_infer", machine=machine)


def _of(plan: ChainPlan, kind: StepKind) -> list[Step]:
    return [step for step in plan.steps if step.kind == kind]


def test_the_steps_of_one_run(change):
    train, evaluate, export, on_gpu, on_cpu = _plan(change("pact", {4: "gpu_list:0"})).steps
    run = "pact_train_gpus_0_autocast_False_nodes_1"
    assert train.arguments == (
        *("python3.7", "train.py", "--pact_quant", f"--output-dir={OUT}/{run}", "--epochs=5"),
        *("--batch-size=4", "--data-path=./lite_data", "--device=gpu"),
    )
    assert train.environment == {"CUDA_VISIBLE_DEVICES": "0"}
    assert (train.log, train.folder) == (f"{OUT}/{run}_train.log", f"{OUT}/{run}")
    assert train.leaves == f"{OUT}/{run}/latest.pdparams"
    assert evaluate.arguments == (
        *("python3.7", "train.py", "--test-only", f"--pretrained={train.leaves}"),
        *("--data-path=./lite_data", "--device=gpu"),
    )
    assert evaluate.log == f"{OUT}/{run}_eval.log"
    assert export.arguments == (
        *("python3.7", "tools/export_model.py", "--model=mobilenet_v3_small"),
        *(f"--pretrained={train.leaves}", f"--save-inference-dir={OUT}/{run}"),
    )
    assert (export.log, export.leaves) == (f"{OUT}/{run}_export.log", train.folder)
    assert on_gpu.arguments == (
        *("python3.7", "deploy/inference_python/infer.py", "--use-gpu=True", f"--model-dir={OUT}/{run}"),
        *("--batch-size=1", "--img-path=./images/demo.jpg", "--benchmark=True"),
    )
    assert evaluate.needs == export.needs == (train.name,)
    assert on_gpu.needs == on_cpu.needs == (export.name,)
    assert all(step.quantized for step in (train, evaluate, export, on_gpu, on_cpu))
    assert on_cpu.arguments == tuple(
        "--use-gpu=False" if word == "--use-gpu=True" else word for word in on_gpu.arguments
    )


@pytest.mark.parametrize(
    ("device", "launcher", "environment", "folder"),
    [
        ("-1", (), {"CUDA_VISIBLE_DEVICES": ""}, "gpus_-1_autocast_False_nodes_1"),
        ("10", (), {"CUDA_VISIBLE_DEVICES": "10"}, "gpus_10_autocast_False_nodes_1"),
        ("2,3", ("--gpus=2,3",), {}, "gpus_2,3_autocast_False_nodes_1"),
        (
            "0,1,2,3,4,5,6,7,8",
            ("--gpus=0,1,2,3,4,5,6,7,8",),
            {},
            "gpus_0,1,2,3,4,5,6,7,8_autocast_False_nodes_1",
        ),
        ("a,b;0,1", ("--ips=a,b", "--gpus=0,1"), {}, "gpus_0,1_autocast_False_nodes_2"),
        ("10.0.0.1,10.0.0.2;0", ("--ips=10.0.0.1,10.0.0.2", "--gpus=0"), {}, "gpus_0_autocast_False_nodes_2"),
    ],
)
def test_devices(change, device, launcher, environment, folder):
    train, evaluate, *_ = _plan(change("norm", {4: f"gpu_list:{device}"})).steps
    words = ("-m", "paddle.distributed.launch", *launcher) if launcher else ()
    assert train.arguments[: len(words) + 2] == ("python3.7", *words, "train.py")
    assert train.environment == environment
    assert train.folder == f"{OUT}/norm_train_{folder}"
    first = device.rpartition(";")[2].split(",")[0]
    assert evaluate.environment == {"CUDA_VISIBLE_DEVICES": "" if device == "-1" else first}
    assert train.arguments[-1] == ("--device=cpu" if device == "-1" else "--device=gpu")


def test_everything_on_the_cpu(change):
    plan = _plan(change("norm"), CPU)
    # To the launcher the variable means cards, even when it is empty.
    seen = {step.name: step.environment["CUDA_VISIBLE_DEVICES"] for step in plan.steps}
    assert [name for name, value in seen.items() if value is None] == [
        "norm_train_gpus_0,1_autocast_False_nodes_1_train"
    ]
    assert set(seen.values()) == {"", None}
    assert not any(step.skipped for step in plan.steps)
    one, several = _of(plan, StepKind.TRAIN)
    assert one.arguments[1] == "train.py"
    assert several.arguments[:5] == (
        *("python3.7", "-m", "paddle.distributed.launch", "--nproc_per_node=2", "train.py"),
    )
    assert one.arguments[-1] == several.arguments[-1] == "--device=cpu"
    assert (one.note, several.note) == ("on the CPU", "2 processes on this machine's CPU")
    assert not any("gpus=" in word for step in plan.steps for word in step.arguments)
    [fleet] = _of(_plan(change("fleet"), CPU), StepKind.TRAIN)
    assert fleet.arguments[3:5] == ("--nproc_per_node=2", "train.py")
    generic = _of(_plan(change("generic"), CPU), StepKind.TRAIN)
    assert all("Global.use_gpu=False" in step.arguments for step in generic)


def test_a_machine_without_cards_skips_the_chain(change):
    plan = _plan(change("norm", {4: "gpu_list:-1|0"}), Machine(cards=0))
    skipped = [step.skipped is not None for step in plan.steps]
    assert skipped == [False, False, False, True, False, *[True] * 5]
    assert plan.steps[5].skipped.startswith("needs card 0; Paddle sees no card here")
    assert plan.steps[6].skipped == f"needs {plan.steps[5].name}, which is skipped"


def test_null_commands_are_left_out(change):
    def kinds(lines):
        return [step.kind.value for step in _plan(change("fleet", lines)).steps]

    assert kinds({}) == ["train", "eval", "export", "infer"]
    assert kinds({17: "eval:null"}) == ["train", "export", "infer"]
    assert kinds({22: "norm_export:null"}) == ["train", "eval"]
    assert kinds({27: "inference:null"}) == ["train", "eval", "export"]
    assert kinds({14: "fleet_train:null"}) == []


def test_a_use_gpu_of_null_is_not_passed_on(change):
    for step in _plan(change("norm", {5: "use-gpu:null", 11: "--data-path:null"})).steps[:2]:
        assert not any(word.startswith(("--device", "--data-path")) for word in step.arguments)


def test_one_device_twice_has_two_folders(change):
    trains = _of(_plan(change("norm", {4: "gpu_list:0|0"})), StepKind.TRAIN)
    assert len({step.folder for step in trains}) == 2


def test_autocast_names_the_folder_and_is_an_argument_of_layout_51(change):
    plan = _plan(
        change("generic", {6: "Global.auto_cast:fp32|amp", 15: "trainer:norm_train", 4: "gpu_list:0"})
    )
    fp32, amp = _of(plan, StepKind.TRAIN)
    assert "Global.auto_cast=amp" in amp.arguments
    assert fp32.folder.endswith("norm_train_gpus_0_autocast_fp32_nodes_1")


def test_the_model_may_be_in_a_folder_below(change):
    plan = _plan(change("generic", {36: "inference_dir:Student"}))
    export, infer = _of(plan, StepKind.EXPORT)[0], _of(plan, StepKind.INFER)[0]
    assert infer.folder == export.leaves == f"{export.folder}/Student"
    assert f"--rec_model_dir={export.folder}/Student" in infer.arguments


def test_what_training_leaves_must_be_said(change):
    with pytest.raises(LowbitError, match=r"line 10: expected what training leaves"):
        _plan(change("norm", {10: "train_model_name:null"}))
