from __future__ import annotations

import json
import re

import pytest

from lowbit.config import load_config
from tests.support.commands import ACCURACY, STEP, tiny_values, write_config
from tests.support.paddleclas import MOBILENET, RESNET18


def test_a_run(run, config_file, tmp_path):
    result = run("lowbit", "train", "-c", config_file, "--epochs", 2)
    assert result.code == 0, result
    assert len(STEP.findall(result.out)) == 2
    assert len(ACCURACY.findall(result.out)) == 2
    folder = tmp_path / "run"
    assert result.out.splitlines()[-2:] == [f"Run folder: {folder}", f"Next: lowbit export {folder}"]
    assert {"config.yaml", "metrics.jsonl", "run.json"} <= {file.name for file in folder.iterdir()}
    names = {file.name for file in (folder / "checkpoints").iterdir()}
    for name in ("latest", "best", "model_0", "model_1"):
        assert {f"{name}.lowbit", f"{name}.pdparams", f"{name}.pdopt"} <= names
    # What was saved with the run trains again, and says what was asked for.
    assert load_config(folder / "config.yaml") == load_config(config_file, ["Global.epochs=2"])


def test_options_and_overrides_reach_the_config(run, asked, config_file):
    options = ["--epochs=7", "--output-dir=2024", "--device=cpu", "--pretrained=w.pdparams", "--resume=auto"]
    options += ["--amp_level=O2", "--amp-dtype=bf16", "-o", "Optimizer.lr.learning_rate=1e-3"]
    options += ["--recipe=recipes/qat_w8a8.yaml", "--teacher=fp32"]
    result = run("lowbit", "train", "-c", config_file, *options)
    assert result.code == 0, result
    ((config, insists),) = asked
    settings = config.Global
    assert (settings.epochs, settings.output_dir, settings.device) == (7, "2024", "cpu")
    assert (settings.pretrained_model, settings.checkpoints) == ("w.pdparams", "auto")
    assert (config.amp_level, config.AMP.dtype) == ("O2", "bf16")
    assert config.Optimizer.lr.learning_rate == 1e-3
    assert (config.Recipe, config.Distillation.teacher) == ("recipes/qat_w8a8.yaml", "fp32")
    assert insists


def test_nothing_given_changes_nothing(run, asked, config_file):
    run("lowbit", "train", "-c", config_file)
    assert asked == [(load_config(config_file), False)]


def test_amp_level_wins_over_the_use_amp_of_a_paddleclas_file(run, asked, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(MOBILENET)
    run("lowbit", "train", "-c", file)
    run("lowbit", "train", "-c", file, "--amp-level=O1")
    assert [config.amp_level for config, _ in asked] == ["O0", "O1"]


def test_amp_dtype_alone_is_an_error(run, asked, config_file):
    assert (
        "no effect without --amp_level" in run("lowbit", "train", "-c", config_file, "--amp-dtype=bf16").error
    )
    assert asked == []


@pytest.mark.parametrize(
    "how", [("--device=gpu",), ("-o", "Global.device=gpu"), ("-o", " Global.device = gpu:0")]
)
def test_asking_for_a_gpu_that_is_not_there_is_an_error(run, config_file, how, tmp_path):
    message = run("lowbit", "train", "-c", config_file, *how).error
    assert "is not available: the installed Paddle" in message
    assert "CPU build" in message
    assert "--device cpu" in message
    assert not (tmp_path / "run").exists()


def test_a_files_gpu_is_a_visible_line(run, lite, tmp_path):
    values = tiny_values(lite, tmp_path / "run")
    values["Global"]["device"] = "gpu"
    result = run("lowbit", "train", "-c", write_config(tmp_path / "c.yaml", values))
    assert result.code == 0, result
    assert re.search(r"^device gpu is not available \(.*CPU build\): using cpu$", result.out, re.MULTILINE)


def test_mixed_precision_on_a_cpu_says_what_it_is(run, config_file):
    result = run("lowbit", "train", "-c", config_file, "--amp_level=O1", "--amp_dtype=bf16")
    assert result.code == 0, result
    assert "Mixed precision O1 in bf16 on a CPU: " in result.out
    assert ("bf16 instructions" in result.out) != ("slower than fp32" in result.out)  # by the processor


# ResNet18 at its own size takes too long for a test on two cores; its file is otherwise as it is.
TRAIN, EVAL = ("DataLoader.Train.dataset.transform_ops", "DataLoader.Eval.dataset.transform_ops")
FASTER = [
    "Global.image_shape=[3, 32, 32]",
    f"{TRAIN}.0.RandCropImage.size=32",
    f"{EVAL}.0.ResizeImage.resize_short=36",
    f"{EVAL}.1.CropImage.size=32",
    "Global.image_shape=[3, 32, 32]",
]


@pytest.mark.parametrize(
    ("text", "overrides"), [(MOBILENET, []), (RESNET18, FASTER)], ids=["MobileNetV3", "ResNet18"]
)
def test_paddleclas_configs_train_given_data(run, lite, tmp_path, monkeypatch, text, overrides):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "ILSVRC2012").symlink_to(lite)
    (tmp_path / "c.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    options = [word for override in ["Global.epochs=1", *overrides] for word in ("-o", override)]
    result = run("lowbit", "train", "-c", "c.yaml", *options)
    assert result.code == 0, result
    assert "using cpu" in result.out  # the file says gpu
    assert STEP.search(result.out)
    assert ACCURACY.search(result.out)
    assert (tmp_path / "output" / "checkpoints" / "best.pdparams").is_file()


def test_images_of_a_path_take_the_place_of_the_configs(run, asked, config_file, tmp_path):
    assert run("lowbit", "train", "-c", config_file, "--data-path", tmp_path / "photos").code == 0
    ((config, _),) = asked
    for section, part in (("Train", "train"), ("Eval", "val")):
        dataset = getattr(config.DataLoader, section).dataset
        assert (dataset.path, dataset.split) == (str(tmp_path / "photos"), part)
        assert dataset.transform_ops
    again = run("lowbit", "train", "-c", "digits", "--data-path", tmp_path / "photos")
    assert again.code == 0 and asked[1][0].DataLoader.Train.dataset.name == "AutoDataset"


def test_presets_are_printed_before_training_and_options_win(run, asked, config_file):
    words = ("--finetune", "--pretrained", "w.pdparams", "--recipe", "qat_w4a4", "--epochs", 2)
    result = run("lowbit", "train", "-c", config_file, *words, "--ema", 0.99, "--early-stop", 3)
    assert result.code == 0 and "Optimizer.lr.learning_rate: 0.0100" in result.out
    ((config, _),) = asked
    assert config.Global.epochs == 2 and config.Distillation.teacher == "fp32"
    assert config.ema_decay == 0.99 and config.Global.early_stop == 3
    assert "--pretrained" in run("lowbit", "train", "-c", config_file, "--finetune").error


def test_json_and_quiet_print_the_result_only(run, config_file):
    found = json.loads(run("lowbit", "train", "-c", config_file, "--json").out)
    assert found["epochs"] == 1 and found["best_top1"] is not None
    quiet = run("lowbit", "train", "-c", config_file, "--quiet")
    assert [line.split()[0] for line in quiet.out.splitlines()] == ["Best", "Run", "Next:"]
