"""The functions behind the commands: same options, and a run folder in the place of a network."""

from __future__ import annotations

import inspect

import pytest

import lowbit
from lowbit.api import advise, analysis, deploy, evaluation, runs, verify
from lowbit.cli import advise as advise_command
from lowbit.cli import analyze, quantize, train
from lowbit.cli import evaluate as eval_command
from lowbit.cli import export as export_command
from lowbit.cli import infer as infer_command
from lowbit.cli import verify as verify_command
from tests.support.commands import W4A4G4

SHOWN = {"quiet", "as_json", "wide"}  # how a command prints
PAIRS = [
    (train.train, runs.train),
    (quantize.calibrate, runs.calibrate),
    (quantize.quantize, runs.quantize),
    (eval_command.evaluate, evaluation.evaluate),
    (infer_command.infer, evaluation.infer),
    (export_command.export, deploy.export_run),
    (verify_command.verify, verify.verify_run),
    (analyze.analyze, analysis.analyze_run),
    (advise_command.advise, advise.advise_run),
]
SPELLINGS = {"format_": "formats", "no_latency": "latency"}


@pytest.mark.parametrize(("command", "function"), PAIRS, ids=lambda one: one.__module__)
def test_a_function_takes_every_option_of_its_command(command, function):
    options = {SPELLINGS.get(name, name) for name in inspect.signature(command).parameters} - SHOWN
    parameters = set(inspect.signature(function).parameters)
    if function is runs.quantize:  # it hands the others on
        parameters |= set(inspect.signature(runs.calibrate).parameters)
    assert options <= parameters


def test_train_export_verify_and_analyze_a_run(config_file, tmp_path):
    folder = runs.train(config_file, ["Global.epochs=1"], recipe=str(_recipe(tmp_path)), silent=True)
    assert folder == tmp_path / "run"
    made = lowbit.export(folder)
    assert made.directory == folder / "export" and {one.format for one in made.formats} == {"paddle", "onnx"}
    found = lowbit.verify(folder, engines="onnxruntime", latency=False)
    assert found.passed and found.engines[0].engine == "onnxruntime"
    assert (folder / "verify.json").is_file()
    assert {layer.name for layer in lowbit.analyze(folder).layers} == {"conv", "head"}
    figures = evaluation.evaluate(folder, quiet=True)
    assert figures.quantized and figures.metrics["top1"] == figures.to_dict()["top1"]
    assert "top-1" in str(evaluation.evaluate(folder, table=True, bn_batches=0, quiet=True))


def _recipe(folder):
    import yaml

    path = folder / "w4a4g4.yaml"
    path.write_text(yaml.safe_dump(W4A4G4), "utf-8")
    return path


def test_a_run_and_the_arguments_of_a_network_do_not_go_together(tmp_path):
    with pytest.raises(lowbit.LowbitError, match="a run has its own example"):
        lowbit.export(tmp_path, example=[[1.0]])
    with pytest.raises(lowbit.LowbitError, match="a run has its export"):
        lowbit.verify(tmp_path, tmp_path / "export")
    with pytest.raises(lowbit.LowbitError, match="a run has its own images"):
        lowbit.analyze(tmp_path, [[1.0]])


def test_what_a_network_needs(tiny, tmp_path):
    with pytest.raises(lowbit.LowbitError, match="give the folder and a batch"):
        lowbit.export(tiny, tmp_path)
    with pytest.raises(lowbit.LowbitError, match="give the folder that was exported to"):
        lowbit.verify(tiny, tmp_path)
    with pytest.raises(lowbit.LowbitError, match="give batches"):
        lowbit.analyze(tiny, tmp_path)
