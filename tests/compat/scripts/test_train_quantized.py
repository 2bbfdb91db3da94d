from __future__ import annotations

import json
import re

import pytest
import yaml

from lowbit.training.checkpoint import read_checkpoint
from tests.support.commands import ACCURACY, STEP, W4A4G4, tiny_values, write_config

QAT = {"quantization_manager": "qat_quantization_manager", "calibration_config": {"steps": 1}} | {
    block: {"qtype": "int4", "scaling": "learned"} for block in ("weight_config", "activation_config")
}


@pytest.fixture
def recipes(tmp_path):
    found = {"qt": tmp_path / "qt.yaml", "qat": tmp_path / "qat.yaml"}
    for name, values in (("qt", W4A4G4), ("qat", QAT)):
        found[name].write_text(yaml.safe_dump(values))
    return found


@pytest.mark.parametrize("kind", ["qt", "qat"])
def test_a_run_as_a_chain_test_asks_for_it(run, lite, config_file, recipes, kind, tmp_path):
    """The folder has latest.pdparams in itself, where the ecosystem's tools look for it."""
    folder = tmp_path / "output"
    result = run(
        *(f"train_{kind}.py", "-c", config_file, "--quant-config", recipes[kind]),
        *(f"--output-dir={folder}", "--epochs=2", "--batch-size=4", f"--data-path={lite}", "--device=cpu"),
    )
    assert result.code == 0, result
    assert len(STEP.findall(result.out)) == 2 and len(ACCURACY.findall(result.out)) == 2
    assert "16 images, 16 for validation, 4 steps an epoch" in result.out
    saved = read_checkpoint(folder / "latest.lowbit")
    assert (folder / "latest.pdparams").is_file() and saved.recipe is not None
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seen = {name for line in lines if line["kind"] == "health" for name in line["layers"]["conv"]}
    assert ("grad_weight.grad_output" in seen) == (kind == "qt")


def test_options_and_overrides_reach_the_config(run, asked, config_file, recipes, tmp_path):
    values = tiny_values(tmp_path, tmp_path / "run")
    listed = {"name": "ImageNetDataset", "image_root": "images", "cls_label_path": "list.txt"}
    listed["transform_ops"] = [{"RandCropImage": {"size": 32}}]
    values["DataLoader"]["Train"]["dataset"] = listed
    options = [f"--recipe={recipes['qt']}", "--model=resnet18", "--batch-size=5", "--epochs=7", "--lr=0.03"]
    options += ["--output-dir=out", "--pretrained=w.pdparams", "--resume=auto", "--finetune_epochs=2"]
    options += ["--device=cpu", "--amp_level=O1", "--amp_dtype=bf16", "--data-path=pictures"]
    config = write_config(tmp_path / "listed.yaml", values)
    result = run("train_qt.py", "-c", config, "-o", "Optimizer.momentum=0.8", *options)
    assert result.code == 0, result
    ((got, insist),) = asked
    assert insist
    assert (got.Recipe, got.Arch.name) == (str(recipes["qt"]), "resnet18")
    assert got.DataLoader.Train.sampler.batch_size == 5
    assert (got.Global.epochs, got.Global.finetune_epochs, got.Global.output_dir) == (7, 2, "out")
    assert (got.Global.pretrained_model, got.Global.checkpoints) == ("w.pdparams", "auto")
    assert (got.Optimizer.momentum, got.Optimizer.lr.learning_rate) == (0.8, 0.03)
    assert (got.AMP.level, got.AMP.dtype) == ("O1", "bf16")
    images, shown = got.DataLoader.Train.dataset, got.DataLoader.Eval.dataset
    assert (images.path, images.split, shown.path, shown.split) == ("pictures", "train", "pictures", "val")
    assert [type(op).__name__ for op in images.transform_ops] == ["RandCropImage"]


def test_the_config_may_bring_the_recipe_and_the_checkpoints_folder(run, asked, lite, tmp_path):
    values = tiny_values(lite, tmp_path / "run") | {"Recipe": W4A4G4}
    config = write_config(tmp_path / "with_recipe.yaml", values)
    assert run("train_qt.py", "-c", config).code == 0
    assert run("train_qt.py", "-c", config, "-o", "Global.checkpoint_dir=here").code == 0
    assert [got.Global.checkpoint_dir for got, _ in asked] == [".", "here"]


@pytest.mark.parametrize(
    ("script", "given", "message"),
    [
        ("train_qt.py", "qat", r"qat.yaml quantizes no gradients, .*: use tools/train_qat.py, or .*qt_W4_"),
        ("train_qat.py", "qt", r"qt.yaml quantizes gradients, .*: use tools/train_qt.py, or .*qat_w4_"),
        ("train_qt.py", None, r"no recipe that says what is quantized: give --recipe NAME, .*qt_W4_"),
        ("train_qat.py", None, r"no recipe that says what is quantized: give --recipe NAME, .*qat_w4_"),
    ],
)
def test_a_recipe_for_the_other_script_is_refused(run, asked, config_file, recipes, script, given, message):
    options = ["--recipe", recipes[given]] if given else []
    assert re.search(message, run(script, "-c", config_file, *options).error)
    assert not asked


def test_gradients_in_full_are_no_quantized_gradients(run, asked, config_file, tmp_path):
    full = W4A4G4 | {"grad_input_config": {"qtype": "full"}, "grad_weight_config": {"qtype": "full"}}
    recipe = write_config(tmp_path / "full.yaml", full)
    assert "quantizes no gradients" in run("train_qt.py", "-c", config_file, "--recipe", recipe).error


def rows(result) -> list[dict]:
    assert result.code == 0, result
    return json.loads(result.out.splitlines()[-1])


def test_it_is_the_table_of_lowbit_eval(run, low_precision):
    expected = run("lowbit", "eval", low_precision, "--table")
    found = run("eval_qt.py", low_precision)
    assert found == expected and found.code == 0, found
    assert ACCURACY.match(found.out.splitlines()[-1])


def test_weights_are_found_as_in_the_original_and_in_a_chain_test(run, low_precision, lite, tmp_path):
    """By the config's Global.pretrained_model; by --pretrained alone, or with a config."""
    weights = low_precision / "checkpoints/best.pdparams"
    config = write_config(tmp_path / "c.yaml", tiny_values(lite, tmp_path / "run"))
    expected = rows(run("eval_qt.py", low_precision, "--json"))
    for arguments in (
        ("-c", config, "-o", f"Global.pretrained_model={weights}"),
        (f"--pretrained={weights}", "--device=cpu"),
        ("-c", config, "--pretrained", weights),
    ):
        assert rows(run("eval_qt.py", *arguments, "--json")) == expected, arguments
    found = rows(run("eval_qt.py", f"--pretrained={weights}", f"--data-path={lite}", "--json"))
    for row, other in zip(found, expected, strict=True):  # in batches of another size
        assert row["metrics"] == pytest.approx(other["metrics"], rel=1e-5)


@pytest.mark.parametrize("with_config", [True, False])
def test_without_weights_it_says_what_to_give(run, config_file, with_config):
    result = run("eval_qt.py", *(["-c", config_file] if with_config else []))
    assert result.error == "give a checkpoint (or run folder), or -c CONFIG with --pretrained WEIGHTS"
