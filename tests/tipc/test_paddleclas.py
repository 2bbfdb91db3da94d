"""PaddleClas's dialect: its runner's own commands, the plan without its defects, a repository of its kind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc import (
    MODES,
    TRAIN_MODES,
    ChainPlan,
    Machine,
    Step,
    StepKind,
    make_plan,
    original_commands,
    original_steps,
    prepare_chain,
    read_config,
    run_plan,
)
from lowbit.tipc.dialects import GENERIC, PADDLECLAS, amp_words, trained_name
from tests.support.chains import CONFIGS, changed_text

LITE = "lite_train_lite_infer"
CPU = Machine(on_cpu=True)
TINY = CONFIGS / "paddleclas.txt"
OUT = f"./test_tipc/output/TinyNet/{LITE}"
RUN = f"{OUT}/norm_train_gpus_0_autocast_null_nodes_1"


def _steps(plan: ChainPlan, kind: StepKind) -> list[Step]:
    return [step for step in plan.steps if step.kind is kind]


# The dialect


@pytest.mark.parametrize("name", ["norm", "pact", "fleet", "generic"])
def test_other_configs_are_generic(name):
    assert read_config(CONFIGS / f"{name}.txt").dialect is GENERIC


def test_the_dialect_is_recognised_from_the_keys_and_can_be_forced(change):
    assert read_config(TINY).dialect is PADDLECLAS
    assert read_config(TINY, "generic").dialect is GENERIC
    assert change("generic", {36: "pretrained_model_url:https://host/a.pdparams"}).dialect is PADDLECLAS
    assert change("norm", {7: "-o Global.output_dir:./output/"}).dialect is PADDLECLAS
    with pytest.raises(LowbitError, match='unknown dialect "paddleclass", did you mean "paddleclas"'):
        read_config(TINY, "paddleclass")


def test_paths_between_the_root_and_the_inference_folder():
    assert PADDLECLAS.from_root("../dataset/val") == "dataset/val"
    assert PADDLECLAS.from_root("images/a.jpg") == "deploy/images/a.jpg"
    assert PADDLECLAS.from_inference("./inference") == "../inference"
    assert GENERIC.from_root("../a") == GENERIC.from_inference("../a") == "../a"
    assert PADDLECLAS.from_root("/data") == PADDLECLAS.from_inference("/data") == "/data"


def test_names_and_precision():
    assert trained_name("GeneralRecognitionV2_PPLCNetV2_base") == "RecModel"
    assert trained_name("ResNet50") == "ResNet50"
    assert amp_words("amp")[:2] == ("-o", "AMP.use_amp=True")
    assert amp_words("null") == amp_words("fp32") == ("-o", "AMP.use_amp=False")


# The original's commands


def test_the_original_strings_of_a_run(tmp_path):
    file = tmp_path / "test_tipc/configs/TinyNet.txt"
    file.parent.mkdir(parents=True)
    shutil.copy(TINY, file)
    commands = original_commands(read_config(file), LITE)
    output = f"{tmp_path}/test_tipc/output/TinyNet/{LITE}"
    run = f"{output}/norm_train_gpus_0_autocast_null_nodes_1"
    train = "python3.7 tools/train.py -c configs/TinyNet.yaml -o Global.seed=1 -o Global.device=gpu"
    assert commands[0] == (
        f"{train} -o Global.output_dir={run} -o Global.epochs=2   -o AMP.use_amp=False "
        f"-o DataLoader.Train.sampler.batch_size=8   -o Global.print_mem_info=True  - {run}.log"
    )
    assert commands[4] == (
        "python3.7 python/predict_cls.py -c configs/inference_cls.yaml -o Global.use_gpu=False "
        "-o Global.enable_mkldnn=False -o Global.cpu_num_threads=1 "
        f"-o Global.inference_model_dir={run} -o Global.batch_size=1 "
        "-o Global.infer_imgs=../dataset/shapes/val/demo.jpg -o Global.benchmark=False   "
        f"> {output}/python_infer_cpu_gpus_0_usemkldnn_False_threads_1_precision_False_batchsize_1.log 2>&1 "
        f" - {output}/python_infer_cpu_gpus_0_usemkldnn_False_threads_1_precision_False_batchsize_1.log"
    )
    several = original_commands(read_config(file), LITE)[5]
    assert several.startswith("python3.7 -m paddle.distributed.launch --devices=0,1 tools/train.py ")
    assert " -o Global.print_mem_info=True -o Global.log_ranks=0,1,2,3,4,5,6,7 - " in several
    assert [step.folder for step in original_steps(read_config(file), LITE)] == (
        [".", ".", ".", "deploy", "deploy"] * 2
    )


def test_the_original_keeps_its_defects(change):
    blank = change("paddleclas", {24: "eval:tools/eval.py  -c a.yaml "})
    assert "tools/eval.py  -c a.yaml  -o Global.pretrained_model=" in original_commands(blank, LITE)[1]
    recognition = change("paddleclas", {2: "model_name:GeneralRecognition_tiny"})
    _, evaluate, export, *_ = original_commands(recognition, LITE)
    assert "/RecModel/latest" in evaluate and "pretrained_model" not in export
    amp = change("paddleclas", {6: "-o Global.auto_cast:amp", 4: "gpu_list:0"})
    assert "-o AMP.use_amp=True -o AMP.scale_loss=128" in original_commands(amp, LITE)[0]
    static = change("paddleclas", {15: "trainer:to_static_train"})
    assert "-o Global.seed=1  -o Global.to_static=True -o Global.device" in original_commands(static, LITE)[0]
    machines = original_commands(change("paddleclas", {4: "gpu_list:10.0.0.10,10.0.0.11;0,1"}), LITE)[0]
    assert "launch --ips=10.0.0.10,10.0.0.11 --devices=0,1 tools/train.py" in machines
    assert "_nodes_2   -o Global.epochs=2 -o AMP" in machines
    assert original_commands(change("paddleclas"), "whole_infer") == []
    quantize = change("paddleclas", {34: "kl_quant:deploy/slim/q.py -c a.yaml", 37: "infer_model:./m"})
    first, second, third = original_steps(quantize, "whole_infer")
    assert first.command.startswith("python3.7 deploy/slim/q.py -c a.yaml > ") and first.folder == "."
    assert "Global.inference_model_dir=.././m/quant_post_static_model" in second.command
    assert second.folder == third.folder == "deploy"


def test_32_lines_have_no_original_in_this_dialect():
    with pytest.raises(LowbitError, match="expected the layout of 51 lines"):
        original_commands(read_config(CONFIGS / "norm.txt", "paddleclas"), LITE)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory) -> Path:
    """PaddleClas's own configs, and the commands that its own runner gave for them."""
    archive = Path(os.environ.get("LOWBIT_DATA", "")) / "paddleclas_configs.zip"
    if not os.environ.get("LOWBIT_DATA") or not archive.is_file():
        pytest.skip("LOWBIT_DATA names no folder with paddleclas_configs.zip")
    folder = tmp_path_factory.mktemp("paddleclas")
    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)
    return folder


def test_every_recorded_config_gives_the_recorded_commands(recorded):
    root = recorded / "configs"
    configs = sorted(root.rglob("*.txt"))
    different = []
    for config in configs:
        expected = (recorded / "commands" / config.relative_to(root)).read_text("utf-8").splitlines()
        found = [line.replace(str(root), "{root}") for line in original_commands(read_config(config), LITE)]
        if found != expected:
            different.append(config.name)
    print(f"{len(configs) - len(different)} of {len(configs)} configs give the commands of the original")
    assert configs and not different


def test_every_recorded_config_can_be_planned_without_an_address(recorded):
    for config in (recorded / "configs").rglob("*.txt"):
        for mode in MODES:
            try:
                plan = make_plan(read_config(config), mode, machine=CPU)
            except LowbitError as error:
                assert mode == "whole_infer" and "line 36: expected" in str(error)
                continue
            texts = [
                word for step in plan.steps for word in (*step.arguments, step.folder, step.leaves or "")
            ]
            assert texts and not any("://" in text for text in texts)


# The plan


def test_the_plan_of_a_run(change):
    train, evaluate, export, _, infer = make_plan(change("paddleclas"), LITE, machine=CPU).steps[:5]
    assert train.arguments == (
        *("python3.7", "tools/train.py", "-c", "configs/TinyNet.yaml", "-o", "Global.seed=1"),
        *("-o", "Global.device=cpu", "-o", f"Global.output_dir={RUN}", "-o", "Global.epochs=5"),
        *("-o", "AMP.use_amp=False", "-o", "DataLoader.Train.sampler.batch_size=8"),
        *("-o", "Global.print_mem_info=True"),
    )
    assert train.leaves == evaluate.weights == export.weights == f"{RUN}/TinyNet/latest"
    assert f"Global.pretrained_model={RUN}/TinyNet/latest" in export.arguments
    assert (export.leaves, export.directory) == (RUN, ".")
    assert infer.directory == "deploy"
    assert f"Global.inference_model_dir=.{RUN}" in infer.arguments
    assert "Global.infer_imgs=../dataset/shapes/val/demo.jpg" in infer.arguments
    assert export.image == infer.image == "dataset/shapes/val/demo.jpg"
    assert infer.log.startswith(OUT)


def test_several_cards(change):
    trains = _steps(make_plan(change("paddleclas"), LITE), StepKind.TRAIN)
    assert trains[1].arguments[1:4] == ("-m", "paddle.distributed.launch", "--devices=0,1")
    assert trains[1].arguments[-1] == "Global.log_ranks=0,1,2,3,4,5,6,7"
    assert "Global.log_ranks=0,1,2,3,4,5,6,7" not in trains[0].arguments
    on_cpu = _steps(make_plan(change("paddleclas"), LITE, machine=CPU), StepKind.TRAIN)
    assert on_cpu[1].arguments[3] == "--nproc_per_node=2"


def test_amp_train_is_not_switched_off(change):
    lines = {15: "trainer:amp_train", 16: "amp_train:tools/train.py -o AMP.level=O2"}
    plan = make_plan(change("paddleclas", lines), LITE)
    assert "AMP.use_amp=True" in plan.steps[0].arguments
    assert "line 6: amp_train trains in mixed precision; the original switches it off" in plan.notes


def test_a_recognition_model(change):
    plan = make_plan(change("paddleclas", {2: "model_name:GeneralRecognition_tiny"}), LITE)
    [first, *_] = _steps(plan, StepKind.EXPORT)
    assert first.weights.endswith("/RecModel/latest")
    assert any(word.endswith("/RecModel/latest") for word in first.arguments)


def test_static_graphs_are_norm_train_with_an_option(change):
    plan = make_plan(change("paddleclas", {15: "trainer:norm_train|to_static_train", 4: "gpu_list:0"}), LITE)
    _, static = _steps(plan, StepKind.TRAIN)
    assert static.arguments[2:8] == (
        *("-c", "configs/TinyNet.yaml", "-o", "Global.seed=1", "-o", "Global.to_static=True"),
    )
    assert len(_steps(plan, StepKind.EXPORT)) == 2


def test_fp16_is_a_flag_of_cards_only(change):
    lines = {4: "gpu_list:0", 45: "-o Global.use_tensorrt:True|False", 46: "-o Global.use_fp16:True|False"}
    infers = _steps(make_plan(change("paddleclas", lines), LITE), StepKind.INFER)
    flags = [
        tuple(word.partition("=")[2] for word in step.arguments if "tensorrt" in word or "fp16" in word)
        for step in infers
    ]
    assert flags == [("True", "True"), ("True", "False"), ("False", "False"), ()]


def test_a_misspelt_false_is_read_as_false_with_a_line(change):
    for mode in MODES:
        plan = make_plan(change("paddleclas"), mode)
        assert 'line 39: "Fasle" is read as False' in plan.notes
        assert not any(step.quantized for step in plan.steps)


def test_lite_data_is_trained_as_often_for_either_inference(change):
    plan = make_plan(change("paddleclas"), "lite_train_whole_infer")
    assert "Global.epochs=5" in plan.steps[0].arguments
    assert any(
        note.startswith("line 7: no entry for lite_train_whole_infer: the 5 epoch") for note in plan.notes
    )
    with pytest.raises(LowbitError, match="line 7: expected an entry for mode whole_train_whole_infer"):
        lines = {7: "-o Global.epochs:lite_train_lite_infer=5"}
        make_plan(change("paddleclas", lines), "whole_train_whole_infer")


def test_32_lines_in_this_dialect(change):
    keys = {7: "-o Global.output_dir:./output/", 10: "train_model_name:latest", 4: "gpu_list:0"}
    for mode in TRAIN_MODES:
        config = change("norm", keys | {31: "--img-path:../images/demo.jpg"})
        train, _, export, infer, _ = make_plan(config, mode).steps
        assert train.leaves == f"{train.folder}/mobilenet_v3_small/latest"
        assert (export.directory, infer.directory, infer.image) == (".", "deploy", "images/demo.jpg")
        assert f"--model-dir=.{train.folder}" in infer.arguments
        assert train.arguments[-1] == "Global.print_mem_info=True"


# The mode whole_infer


def test_whole_infer_exports_the_downloaded_weights(change):
    plan = make_plan(change("paddleclas"), "whole_infer", machine=CPU)
    export, *infers = plan.steps
    assert export.arguments[-4:] == (
        *("-o", "Global.pretrained_model=./TinyNet_pretrained", "-o", "Global.save_inference_dir=inference"),
    )
    assert export.leaves == "inference"
    assert all("Global.inference_model_dir=../inference" in step.arguments for step in infers)
    assert any("./TinyNet_pretrained.pdparams is the file of https://" in note for note in plan.notes)


def test_whole_infer_of_a_downloaded_model(change):
    url = "inference_model_url:https://models.example/TinyNet_infer.tar"
    plan = make_plan(change("paddleclas", {36: url, 38: "infer_export:null"}), "whole_infer")
    assert {step.kind for step in plan.steps} == {StepKind.INFER}


def test_whole_infer_quantizes_without_training(change):
    lines = {34: "kl_quant:deploy/slim/quant.py -c a.yaml -o Global.save_inference_dir=./tiny_infer"}
    quantize, *infers = make_plan(change("paddleclas", lines), "whole_infer").steps
    assert quantize.leaves == "tiny_infer/quant_post_static_model" and quantize.quantized
    assert quantize.links["inference.pdmodel"] == "model.pdmodel"
    assert "Global.inference_model_dir=../tiny_infer/quant_post_static_model" in infers[0].arguments
    assert infers[0].needs == (quantize.name,)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({36: "inference_dir:null"}, "line 36: expected what whole_infer starts from"),
        ({38: "infer_export:False"}, "line 36: .* no command that exports them"),
        ({36: "pretrained_model_url:https://models.example/"}, "line 36: expected a path, or a URL"),
    ],
)
def test_whole_infer_needs_a_model(change, lines, message):
    with pytest.raises(LowbitError, match=message):
        make_plan(change("paddleclas", lines), "whole_infer")


@pytest.mark.parametrize(
    ("name", "title", "test"),
    [
        ("net_serving_infer_python.txt", "serving_params", "Paddle Serving"),
        ("net_infer_cpp.txt", "cpp_infer_params", "inference in C.."),
        ("net_paddle2onnx_infer_python.txt", "paddle2onnx_params", "Paddle2ONNX"),
        ("net_lite_arm_cpu_cpp.txt", "lite_params", "Paddle Lite"),
        ("net_train_dy2static_python.txt", "train_params", "training in static graphs"),
        ("net_whatever.txt", "whatever_params", "another test"),
    ],
)
def test_configs_of_other_tests_are_refused_by_name(tmp_path, name, title, test):
    file = tmp_path / name
    file.write_text(f"===={title}====\nmodel_name:net\npython:python3\n", "utf-8")
    with pytest.raises(LowbitError, match=rf"{name}, line \d+: expected .*this is a config of .*{test}"):
        read_config(file)


# A repository with PaddleClas's folders


@pytest.fixture
def repository(tmp_path) -> Path:
    """The config of a repository whose programs are stand-ins, and work only where PaddleClas's do."""
    root = tmp_path / "PaddleClas"
    source = Path(__file__).parent / "paddleclas_stand_in.py"
    programs = ("tools/train.py", "tools/eval.py", "tools/export_model.py", "deploy/python/predict_cls.py")
    for name in (*programs, "deploy/slim/quant_post_static.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, root / name)
    for name, text in {
        "configs/TinyNet.yaml": "Arch: {name: TinyNet, class_num: 4}",
        "deploy/configs/inference_cls.yaml": "Global: {}",
        "dataset/shapes/val/demo.jpg": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")
    file = root / "test_tipc/configs/TinyNet/TinyNet_train_infer_python.txt"
    file.parent.mkdir(parents=True)
    lines = {3: f"python:{sys.executable}", 4: "gpu_list:0"}
    file.write_text(changed_text("paddleclas", lines), "utf-8")
    return file


def test_a_repository_passes_by_our_plan(repository, stand_in_model):
    result = run_plan(make_plan(read_config(repository), LITE, machine=CPU))
    assert result.passed, [(step.name, step.reason) for step in result.steps]
    checks = {(step.kind, check.name): check.passed for step in result.steps for check in step.checks}
    assert checks["train", "learning"] is True
    assert checks["eval", "accuracy"] is True
    assert checks["infer", "the trained model's class"] is True
    assert result.steps[3].command.startswith("(cd deploy && ")


def test_a_repository_passes_by_the_original_commands(repository):
    root = repository.parents[3]
    steps = original_steps(read_config(repository), LITE)
    (root / f"test_tipc/output/TinyNet/{LITE}").mkdir(parents=True)
    for step in steps:
        done = subprocess.run(["bash", "-c", step.command], cwd=root / step.folder, capture_output=True)
        assert done.returncode == 0, (step.command, done.stderr)
    assert len(steps) == 5 and all(Path(step.log).is_file() for step in steps[1:])


def test_a_model_that_does_not_learn_fails(repository, stand_in_model, monkeypatch):
    monkeypatch.setenv("STAND_IN", "flat")
    result = run_plan(make_plan(read_config(repository), LITE, machine=CPU))
    assert result.steps[0].reason == (
        "learning: mean loss 2 in the first 2 epochs, 2 in the last 2: no better than guessing among 4 "
        "classes (1.386)"
    )


def test_released_weights_are_exported_and_run(repository, stand_in_model):
    (repository.parents[3] / "TinyNet_pretrained.pdparams").write_bytes(b"")
    result = run_plan(make_plan(read_config(repository), "whole_infer", machine=CPU))
    assert result.passed, [(step.name, step.reason) for step in result.steps]
    assert [step.kind for step in result.steps] == ["export", "infer", "infer"]


def test_a_model_is_quantized_without_training_and_run(repository, stand_in_model):
    command = (
        "deploy/slim/quant_post_static.py -c configs/TinyNet.yaml -o Global.save_inference_dir=./tiny_infer"
    )
    text = repository.read_text("utf-8").replace("kl_quant:null", f"kl_quant:{command}")
    repository.write_text(text, "utf-8")
    folder = repository.parents[3] / "tiny_infer"
    folder.mkdir()
    for suffix in (".pdmodel", ".pdiparams"):
        (folder / f"inference{suffix}").write_text("a stand-in", "utf-8")
    result = run_plan(make_plan(read_config(repository), "whole_infer", machine=CPU))
    assert result.passed, [(step.name, step.reason) for step in result.steps]
    assert (folder / "quant_post_static_model/inference.pdmodel").is_symlink()


def test_weights_in_another_folder_fail(repository, stand_in_model):
    result = run_plan(make_plan(read_config(repository, "generic"), LITE, machine=CPU))
    assert result.steps[0].reason.startswith("checkpoint: no latest in ")


def test_prepare_looks_where_inference_looks(repository):
    config = read_config(repository)
    assert prepare_chain(config, LITE)[-1] == "dataset/shapes/val/demo.jpg: there already"
    with pytest.raises(
        LowbitError, match=r"line 36: expected what https.* has at ./TinyNet_pretrained.pdparams"
    ):
        prepare_chain(config, "whole_infer")
    (repository.parents[3] / "TinyNet_pretrained.pdparams").write_bytes(b"")
    assert len(prepare_chain(config, "whole_infer")) == 3
