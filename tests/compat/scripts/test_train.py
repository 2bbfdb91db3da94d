from __future__ import annotations

import inspect
import json
import re

import numpy as np
import pytest

from lowbit.compat.scripts.train import train
from lowbit.config.transform_ops import (
    AutoAugment,
    NormalizeImage,
    RandCropImage,
    RandFlipImage,
    RandomErasing,
)
from lowbit.deploy import PaddleEngine
from tests.support.commands import ACCURACY, SMALL, STEP

# The options and defaults that the Paddle ecosystem's scripts and chain tests rely on.
DEFAULTS = {
    "data_path": "./data",
    "model": "mobilenet_v3_small",
    "device": None,
    "batch_size": 256,
    "epochs": 90,
    "amp_level": None,
    "workers": 8,
    "opt": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "lr_step_size": 30,
    "lr_gamma": 0.1,
    "print_freq": 10,
    "resume": None,
    "start_epoch": 0,
    "sync_bn": False,
    "test_only": False,
    "pretrained": None,
    "auto_augment": None,
    "random_erase": 0.0,
    "pact_quant": False,
}


def test_defaults():
    defaults = {name: value.default for name, value in inspect.signature(train).parameters.items()}
    assert DEFAULTS.items() <= defaults.items()
    assert str(defaults["output_dir"]) == "."


def test_the_config_of_the_defaults(run, asked):
    assert run("train.py").code == 0
    ((config, insists),) = asked
    assert not insists
    assert (config.Global.epochs, config.Global.output_dir, config.Global.checkpoint_dir) == (90, ".", ".")
    assert (config.Arch.name, config.num_classes, config.amp_level) == ("mobilenet_v3_small", None, "O0")
    optimizer = config.Optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.decay) == ("Momentum", 0.9, 1e-4)
    assert (optimizer.lr.name, optimizer.lr.learning_rate) == ("Step", 0.1)
    assert (optimizer.lr.step_size, optimizer.lr.gamma) == (30, 0.1)
    train_split, eval_split = config.DataLoader.Train, config.DataLoader.Eval
    assert train_split.dataset.transform_ops == [RandCropImage(size=224), RandFlipImage(), NormalizeImage()]
    assert (train_split.dataset.path, train_split.dataset.split) == ("./data", "train")
    assert (eval_split.dataset.path, eval_split.dataset.split) == ("./data", "val")
    assert [type(op).__name__ for op in eval_split.dataset.transform_ops] == [
        "ResizeImage",
        "CropImage",
        "NormalizeImage",
    ]
    for split in (train_split, eval_split):
        assert (split.sampler.batch_size, split.loader.num_workers) == (256, 8)
    assert (train_split.sampler.shuffle, eval_split.sampler.shuffle) == (True, False)


@pytest.mark.parametrize(
    ("options", "path", "value"),
    [
        (["--data-path=d"], "DataLoader.Train.dataset.path", "d"),
        (["--data-path=d"], "DataLoader.Eval.dataset.path", "d"),
        (["--model=resnet18"], "Arch.name", "resnet18"),
        (["--device=cpu"], "Global.device", "cpu"),
        (["-b", "4"], "DataLoader.Train.sampler.batch_size", 4),
        (["--batch-size=4"], "DataLoader.Eval.sampler.batch_size", 4),
        (["--epochs=2"], "Global.epochs", 2),
        (["--amp_level=O1"], "AMP.level", "O1"),
        (["--amp_level=O2"], "amp_level", "O2"),
        (["--amp_level=O1"], "AMP.dtype", "fp16"),
        (["--amp_level=O1", "--amp_dtype=bf16"], "AMP.dtype", "bf16"),
        (["-j", "3"], "DataLoader.Train.loader.num_workers", 3),
        (["--workers=3"], "DataLoader.Eval.loader.num_workers", 3),
        (["--opt=rmsprop"], "Optimizer.name", "RMSProp"),
        (["--opt=adamw"], "Optimizer.name", "AdamW"),
        (["--lr=0.5"], "Optimizer.lr.learning_rate", 0.5),
        (["--momentum=0.5"], "Optimizer.momentum", 0.5),
        (["--wd=0.5"], "Optimizer.decay", 0.5),
        (["--weight-decay=0.25"], "Optimizer.decay", 0.25),
        (["--lr-step-size=7"], "Optimizer.lr.step_size", 7),
        (["--lr-gamma=0.5"], "Optimizer.lr.gamma", 0.5),
        (["--print-freq=3"], "Global.print_batch_step", 3),
        (["--output-dir=o"], "Global.output_dir", "o"),
        (["--resume=auto"], "Global.checkpoints", "auto"),
        (["--resume=o/latest"], "Global.checkpoints", "o/latest"),
        (["--start-epoch=3"], "Global.start_epoch", 3),
        (["--sync-bn"], "Global.sync_bn", True),
        (["--pretrained=w.pdparams"], "Global.pretrained_model", "w.pdparams"),
        (["--num-classes=7"], "num_classes", 7),
        (["--reset-classifier"], "Global.reset_classifier", True),
        (["--crop-size=64"], "Global.image_shape", (3, 64, 64)),
        (["--crop-size=64"], "DataLoader.Train.dataset.transform_ops.0.size", 64),
        (["--crop-size=64"], "DataLoader.Eval.dataset.transform_ops.1.size", 64),
        (["--resize-size=72"], "DataLoader.Eval.dataset.transform_ops.0.resize_short", 72),
        (["--seed=3"], "Global.seed", 3),
        (["--save-steps=3"], "Global.save_steps", 3),
        (
            ["--auto-augment=cifar10"],
            "DataLoader.Train.dataset.transform_ops.2",
            AutoAugment(policy="cifar10"),
        ),
        (["--random-erase=0.3"], "DataLoader.Train.dataset.transform_ops.3", RandomErasing(EPSILON=0.3)),
    ],
)
def test_every_option_has_its_effect(run, asked, options, path, value):
    result = run("train.py", *options)
    assert result.code == 0, result
    found, _ = asked[0]
    for key in path.split("."):
        found = found[int(key)] if key.isdigit() else getattr(found, key)
    assert found == value


def test_only_a_device_that_was_given_is_insisted_on(run, asked):
    run("train.py", "--device=gpu")
    run("train.py")
    assert [insists for _, insists in asked] == [True, False]


def test_augmentation_is_for_training_only(run, asked):
    run("train.py", "--auto-augment=imagenet", "--random-erase=0.5")
    ops = asked[0][0].DataLoader.Eval.dataset.transform_ops
    assert not any(isinstance(op, AutoAugment | RandomErasing) for op in ops)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--teacher=fp32"], "teacher fp32 is the unquantized model, and without a Recipe so is the student"),
        (["--pact_quant", "--teacher=fp32"], "starts from, and that is nothing: give --pretrained"),
        (["--amp_dtype=bf16"], "--amp_dtype bf16 has no effect without --amp_level"),
        (["--device=tpu"], '--device: Global.device: unknown device "tpu", '),
        (["--lr=-1"], "--lr: Optimizer.lr.learning_rate: must be greater than or equal to 0, got -1.0"),
        (["--lr=nan"], "--lr: Optimizer.lr.learning_rate: expected a finite number"),
        (["--momentum=1"], "--momentum: Optimizer.momentum: must be less than 1"),
        (["--wd=-1"], "--weight-decay: Optimizer.regularizer.coeff: must be greater than or equal to 0"),
        (["--lr-gamma=-1"], "--lr-gamma: Optimizer.lr.gamma: must be greater than or equal to 0"),
        (["--seed=99999999999999999999"], "--seed: Global.seed: must be less than"),
        (["--test-only"], "--test-only needs --pretrained"),
    ],
)
def test_mistakes(run, asked, options, message):
    assert message in run("train.py", *options).error
    assert asked == []


@pytest.mark.parametrize(
    "option",
    [
        *("--epochs=0", "--batch-size=0", "--workers=-1", "--print-freq=0", "--lr-step-size=0", "--opt=SGD"),
        *("--random-erase=2", "--auto-augment=imagnet", "--amp_level=O3", "--num-classes=0", "--crop-size=0"),
    ],
)
def test_impossible_options_are_named(run, asked, option):
    result = run("train.py", option)
    assert result.code == 2
    assert f"Invalid value for '{option.split('=')[0]}'" in result.err
    assert asked == []


def test_a_gpu_that_is_not_there(run, lite, tmp_path):
    message = run(
        "train.py", *SMALL, "--data-path", lite, "--output-dir", tmp_path / "o", "--device=gpu"
    ).error
    assert 'device "gpu" is not available: the installed Paddle' in message
    assert not (tmp_path / "o").exists()


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    return tmp_path_factory.mktemp("train_py") / "out"


def test_a_run_with_everything(run, lite, output):
    options = [
        "--auto-augment=imagenet",
        "--random-erase=0.9",
        "--sync-bn",
        "--amp_level=O1",
        "--print-freq=1",
    ]
    result = run("train.py", *SMALL, "--data-path", lite, "--output-dir", output, *options, "--opt=rmsprop")
    assert result.code == 0, result
    assert len(STEP.findall(result.out)) == 2
    assert ACCURACY.search(result.out)
    names = {file.name for file in output.iterdir()}
    for name in ("latest", "best", "model_0"):
        assert {f"{name}.pdparams", f"{name}.pdopt"} <= names


def test_resume_goes_on(run, lite, tmp_path):
    common = [*SMALL, "--data-path", lite, "--output-dir", tmp_path / "o"]
    assert run("train.py", *common).code == 0
    result = run("train.py", *common, "--epochs=3", "--resume=auto")
    assert result.code == 0, result
    assert "resumed from" in result.out
    assert "[Epoch 0" not in result.out
    assert len(re.findall(r"^\[Epoch [12]", result.out, re.MULTILINE)) == 2
    assert not (tmp_path / "o" / "earlier").exists()
    again = run("train.py", *common, "--epochs=2", "--resume", tmp_path / "o" / "model_0.pdparams")
    assert again.code == 0, again
    assert "[Epoch 1" in again.out


def test_resume_what_is_not_there(run, lite, tmp_path):
    common = [*SMALL, "--data-path", lite, "--output-dir", tmp_path / "o"]
    assert "no lowbit checkpoint (.lowbit) of that name" in run("train.py", *common, "--resume=nowhere").error
    result = run("train.py", *common, "--resume=auto")
    assert result.code == 0
    assert "starting from the beginning" in result.out


def test_start_epoch(run, lite, tmp_path):
    common = [*SMALL, "--data-path", lite, "--output-dir", tmp_path / "o", "--epochs=3"]
    result = run("train.py", *common, "--start-epoch=2")
    assert "[Epoch 2" in result.out
    assert "[Epoch 0" not in result.out
    assert "nothing to train: 5 of 3 epochs are done" in run("train.py", *common, "--start-epoch=5").out


@pytest.mark.parametrize(
    "how", ["--pretrained={}/best.pdparams", "--pretrained={}/best", "--resume={}/best.lowbit"]
)
def test_test_only(run, lite, tmp_path, how):
    common = [*SMALL, "--data-path", lite, "--output-dir", tmp_path / "o"]
    run("train.py", *common)
    before = sorted((tmp_path / "o").iterdir())
    result = run("train.py", *common, "--test-only", how.format(tmp_path / "o"))
    assert result.code == 0, result
    assert ACCURACY.search(result.out)
    assert sorted((tmp_path / "o").iterdir()) == before


def test_pretrained_weights_of_other_classes(run, lite, tmp_path):
    common = [*SMALL, "--data-path", lite, "--num-classes=9"]
    assert run("train.py", *common, "--output-dir", tmp_path / "nine").code == 0
    weights = f"--pretrained={tmp_path / 'nine' / 'latest.pdparams'}"
    four = [*SMALL, "--data-path", lite, "--output-dir", tmp_path / "four", weights]
    message = run("train.py", *four).error
    assert "Only the classifier differs" in message
    assert "head.weight (file [128, 9], model [128, 4])" in message
    result = run("train.py", *four, "--reset-classifier")
    assert result.code == 0, result
    assert "except for a new classifier (head.weight, head.bias)" in result.out


def test_pact_quant_keeps_the_pretrained_model_to_be_compared_with(run, lite, tmp_path):
    fp32, out = tmp_path / "fp32", tmp_path / "out"
    assert run("train.py", f"--data-path={lite}", f"--output-dir={fp32}", *SMALL).code == 0
    arguments = [f"--data-path={lite}", f"--output-dir={out}", f"--pretrained={fp32 / 'latest.pdparams'}"]
    result = run("train.py", "--pact_quant", "--teacher=fp32", "--amp_level=O1", *arguments, *SMALL)
    assert result.code == 0, result
    lines = [line for line in result.out.splitlines() if line.startswith(" * ")]
    assert [line.startswith(" * fp32 Acc@1 ") for line in lines] == [True, False]
    assert (out / "fp32.lowbit").is_file() and not list(out.glob("fp32.pd*"))
    figures = json.loads(run("lowbit", "eval", out, "--json").out)
    assert figures["fp32"] == json.loads(run("lowbit", "eval", fp32, "--json").out)


def test_pact_quant_trains_a_quantized_network_and_leaves_it_exported(run, lite, tmp_path):
    out = tmp_path / "out"
    arguments = [f"--data-path={lite}", f"--output-dir={out}", *SMALL]
    result = run("train.py", "--pact_quant", *arguments)
    assert result.code == 0, result
    assert "2 of 2 layers are quantized" in result.out
    assert {path.name for path in out.glob("qat_inference.*")} == {
        "qat_inference.json",
        "qat_inference.pdiparams",
        "qat_inference.yml",
    }
    weights = f"--pretrained={out / 'latest.pdparams'}"
    result = run("export_model.py", weights, f"--save-inference-dir={out / 'exported'}")
    assert result.code == 0, result
    # The exporter recognised the quantized checkpoint: both programs round, and to the same answers.
    images = np.random.default_rng(0).standard_normal((4, 3, 32, 32), dtype=np.float32)
    answers = []
    for folder, name in ((out, "qat_inference"), (out / "exported", "inference")):
        assert b"round" in (folder / f"{name}.json").read_bytes()
        answers.append(PaddleEngine(folder, onednn=False, file_name=name).run(images))
    np.testing.assert_array_equal(*answers)


def test_by_a_config(run, asked, tmp_path):
    result = run("train.py", "-c", "digits", "-o", "Global.epochs=3", "-b", "7", f"--output-dir={tmp_path}")
    assert result.code == 0, result
    ((config, insists),) = asked
    assert not insists
    assert (config.Global.epochs, config.Global.output_dir) == (3, str(tmp_path))
    assert config.Global.checkpoint_dir == "."
    assert config.DataLoader.Train.sampler.batch_size == 7
    assert config.Arch.name == "resnet20"  # not the script's own default


def test_by_a_config_with_other_images_and_pact(run, asked, lite, monkeypatch):
    monkeypatch.setattr("lowbit.compat.scripts.train._export_quantized", lambda folder, model: None)
    assert run("train.py", "-c", "digits", f"--data-path={lite}", "--pact_quant", "--amp_level=O1").code == 0
    ((config, _),) = asked
    assert config.DataLoader.Train.dataset.path == str(lite)
    assert config.Recipe == {"activation_preprocess_type": "PACT"} and config.amp_level == "O1"


def test_what_does_not_go_with_a_config(run):
    assert "--opt has no effect with -c" in run("train.py", "-c", "digits", "--opt=adamw").error
    assert "add -c CONFIG" in run("train.py", "-o", "Global.epochs=2").error
