from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc import Machine, StepKind, make_plan

NAMES_32 = ["export_0", "python_infer_gpu_batchsize_1", "python_infer_cpu_batchsize_1"]


def test_whole_infer_of_layout_32(change):
    plan = make_plan(change("norm"), "whole_infer")
    export, on_gpu, on_cpu = plan.steps
    assert [step.name for step in plan.steps] == NAMES_32
    assert export.arguments == (
        *("python3.7", "tools/export_model.py", "--model=mobilenet_v3_small"),
        "--pretrained=./pretrain_models/mobilenet_v3_small_pretrained.pdparams",
        "--save-inference-dir=./output/mobilenet_v3_small_infer/",
    )
    assert on_cpu.arguments == (
        *("python3.7", "deploy/inference_python/infer.py", "--use-gpu=False"),
        *("--model-dir=./output/mobilenet_v3_small_infer/", "--batch-size=1"),
        *("--img-path=./images/demo.jpg", "--benchmark=True"),
    )
    assert on_gpu.environment == {"CUDA_VISIBLE_DEVICES": "0"}
    assert on_gpu.needs == ("export_0",)
    assert on_cpu.log == "./test_tipc/output/mobilenet_v3_small/whole_infer/python_infer_cpu_batchsize_1.log"
    without = make_plan(change("norm", {25: "infer_export:null"}), "whole_infer").steps
    assert [(step.kind, step.needs) for step in without] == [(StepKind.INFER, ())] * 2


def test_whole_infer_of_layout_51(change):
    plan = make_plan(change("generic"), "whole_infer")
    exports = [step for step in plan.steps if step.kind == StepKind.EXPORT]
    assert [step.arguments[-2:] for step in exports] == [
        (
            "Global.checkpoints=./inference/reader_quant/",
            "Global.save_inference_dir=./inference/reader_quant/",
        )
    ]
    first = [step for step in plan.steps if step.folder == "./inference/reader/"]
    second = [step for step in plan.steps if step.folder == "./inference/reader_quant/"][1:]
    assert {step.needs for step in first} == {()}
    assert {step.needs for step in second} == {(exports[0].name,)}
    assert not any(step.quantized for step in first) and all(step.quantized for step in second)
    assert all(step.name.startswith("model_0_python_infer") for step in first)


def _grid(plan) -> list[tuple[str, ...]]:
    prefixes = ("--enable_mkldnn=", "--cpu_threads=", "--use_tensorrt=", "--precision=")
    return [
        tuple(word.partition("=")[2] for word in step.arguments if word.startswith(prefixes))
        for step in plan.steps
        if step.kind == StepKind.INFER
    ]


def test_the_grid_of_a_model_in_full_precision(change):
    lines = {37: "infer_model:./m", 38: "infer_export:null", 39: "infer_quant:False"}
    assert _grid(make_plan(change("generic", lines), "whole_infer")) == [
        *[("False", "fp32"), ("True", "fp32"), ("True", "fp16")],
        *[("True", "1", "fp32"), ("True", "1", "fp16"), ("True", "1", "int8")],
        *[("True", "6", "fp32"), ("True", "6", "fp16"), ("True", "6", "int8")],
        *[("False", "1", "fp32"), ("False", "1", "int8"), ("False", "6", "fp32"), ("False", "6", "int8")],
    ]


def test_the_grid_of_a_quantized_model(change):
    lines = {37: "infer_model:./m", 38: "infer_export:null", 39: "infer_quant:True"}
    assert _grid(make_plan(change("generic", lines), "whole_infer")) == [
        *[("False", "fp32"), ("True", "fp32"), ("True", "fp16"), ("True", "int8")],
        *[("True", "1", "int8"), ("True", "6", "int8"), ("False", "1", "int8"), ("False", "6", "int8")],
    ]


def test_the_cpu_instead_of_a_card(change):
    [_, was_gpu, was_cpu] = make_plan(change("norm"), "whole_infer", machine=Machine(on_cpu=True)).steps
    assert was_gpu.arguments == was_cpu.arguments
    assert was_gpu.log != was_cpu.log
    assert (was_gpu.note, was_cpu.note) == ("on the CPU", None)
    grid = make_plan(change("generic"), "whole_infer", machine=Machine(on_cpu=True)).steps
    for step in grid:
        assert (step.skipped == "TensorRT needs a card") is ("--use_tensorrt=True" in step.arguments)


def test_every_inference_has_its_own_log(change):
    for name, mode in (
        ("norm", "lite_train_lite_infer"),
        ("generic", "lite_train_lite_infer"),
        ("generic", "whole_infer"),
    ):
        logs = [step.log for step in make_plan(change(name), mode).steps]
        assert len(set(logs)) == len(logs)
    twice = make_plan(change("norm", {29: "--batch-size:1|1"}), "whole_infer").steps
    assert len({step.log for step in twice}) == 5


def test_an_absent_setting_is_one_case_without_its_argument(change):
    plan = make_plan(change("norm", {28: "--use-gpu:null", 29: "--batch-size:"}), "whole_infer")
    [_, infer] = plan.steps
    assert not any(word.startswith(("--use-gpu", "--batch-size")) for word in infer.arguments)


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("norm", {28: "--use-gpu:True|Flase"}, 'line 28: .*found "Flase"; did you mean "False"'),
        ("norm", {24: "train_model:null"}, "line 24: expected the model that whole_infer starts from"),
        ("norm", {20: "--save-inference-dir:"}, "line 20: expected the folder of the exported model"),
        ("generic", {39: "infer_quant:Ture"}, 'line 39: .*found "Ture"; did you mean "True"'),
        ("norm", {25: "infer_export:a.py && b.py"}, "line 25: .*needs a shell"),
    ],
)
def test_mistakes(change, name, line, message):
    with pytest.raises(LowbitError, match=message):
        make_plan(change(name, line), "whole_infer")


def test_a_url_is_never_a_path(change):
    lines = {36: "inference_dir:https://host/a.tar", 37: "infer_model:https://host/a_infer|./b"}
    plan = make_plan(change("generic", lines), "whole_infer")
    assert {step.folder for step in plan.steps} == {"./a_infer", "./b"}
    assert any("./a_infer is the file of https://host/a_infer" in note for note in plan.notes)
    trained = make_plan(change("generic", lines), "lite_train_lite_infer")
    assert not any("://" in word for step in trained.steps for word in step.arguments)
