from __future__ import annotations

import json

import numpy as np
import pytest

from lowbit.config import validate
from lowbit.training.checkpoint import find_fp32, read_checkpoint
from lowbit.training.loop import train
from lowbit.training.trained_model import open_baseline, open_checkpoint
from tests.support.runs import PACT, tiny_config, tiny_values, weights_hash


@pytest.fixture(scope="module")
def fp32(tmp_path_factory):
    return train(tiny_config(tmp_path_factory.mktemp("fp32") / "run", epochs=1))


def config(folder, fp32, **settings):
    start = {"pretrained_model": str(fp32 / "checkpoints/best.pdparams"), "epochs": 1}
    return validate(tiny_values(folder, **(start | settings)) | {"Recipe": PACT}, {}, "qat")


def baselines(run):
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "baseline"]


def test_a_quantized_run_keeps_and_measures_what_it_starts_from(fp32, tmp_path, capsys):
    before = read_checkpoint(fp32 / "checkpoints/best.lowbit")
    run = train(config(tmp_path / "run", fp32))
    out = capsys.readouterr().out
    kept = read_checkpoint(run / "checkpoints/fp32.lowbit")
    assert kept.recipe is None and kept.classes == before.classes and kept.model_name == before.model_name
    assert kept.model.keys() == before.model.keys()
    assert all(kept.model[name].tobytes() == before.model[name].tobytes() for name in before.model)
    (record,) = baselines(run)
    assert record["step"] == 0 and record["top1"] == pytest.approx(before.progress.best)
    assert out.count(f" * fp32 Acc@1 {record['top1']:.3f} Acc@5 ") == 1
    assert out.count("\n * Acc@1 ") == 1
    # It is nobody's best or latest.
    assert open_checkpoint(run).source.name == "best.lowbit"
    baseline = open_baseline(open_checkpoint(run))
    assert baseline.source.name == "fp32.lowbit" and not baseline.quantized
    assert open_baseline(baseline) is None


def test_no_pretrained_weights_no_baseline(fp32, tmp_path):
    for folder, settings in (
        ("fresh", {"pretrained_model": None}),
        ("renewed", {"reset_classifier": True}),
    ):
        values = config(tmp_path / folder, fp32, **settings).model_dump(mode="json")
        if folder == "renewed":
            values["Arch"]["class_num"] = 12
        run = train(validate(values, {}, folder))
        assert not (run / "checkpoints/fp32.lowbit").exists() and not baselines(run)
        assert open_baseline(open_checkpoint(run)) is None


def test_without_validation_images_it_is_kept_and_not_measured(fp32, tmp_path):
    run = train(config(tmp_path, fp32, eval_during_train=False))
    assert (run / "checkpoints/fp32.lowbit").is_file() and not baselines(run)


def test_resume_does_not_do_it_again(fp32, tmp_path, capsys):
    run = train(config(tmp_path / "run", fp32))
    kept = run / "checkpoints/fp32.lowbit"
    written, digest = kept.stat().st_mtime_ns, weights_hash(kept)
    capsys.readouterr()
    train(config(tmp_path / "run", fp32, checkpoints="auto", epochs=2))
    assert "fp32 Acc@1" not in capsys.readouterr().out
    assert kept.stat().st_mtime_ns == written and len(baselines(run)) == 1
    # Elsewhere, the run takes it along.
    other = train(config(tmp_path / "other", fp32, checkpoints=str(run), epochs=3))
    assert weights_hash(other / "checkpoints/fp32.lowbit") == digest


def test_a_new_run_in_the_same_folder_moves_it_aside(fp32, tmp_path):
    run = train(config(tmp_path, fp32))
    digest = weights_hash(run / "checkpoints/fp32.lowbit")
    train(tiny_config(tmp_path, epochs=1))
    assert find_fp32(run / "checkpoints/latest.lowbit") is None
    assert weights_hash(run / "earlier/1/checkpoints/fp32.lowbit") == digest


def test_the_baseline_is_the_model_before_anything_was_trained(fp32, tmp_path):
    run = train(config(tmp_path, fp32))
    trained = read_checkpoint(run / "checkpoints/latest.lowbit").model
    kept = read_checkpoint(run / "checkpoints/fp32.lowbit").model
    assert not np.array_equal(trained["conv.weight"], kept["conv.weight"])
