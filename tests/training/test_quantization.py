from __future__ import annotations

import json

import numpy as np
import paddle
import pytest

from lowbit.config import validate
from lowbit.deploy import PaddleEngine, export_model
from lowbit.errors import LowbitError
from lowbit.nn import preparation_of
from lowbit.training import loop
from lowbit.training.checkpoint import read_checkpoint, save_checkpoint
from lowbit.training.display import PlainDisplay
from lowbit.training.loop import train
from lowbit.training.quantization import recipe_differences
from lowbit.training.trained_model import open_checkpoint, open_weights
from tests.support.runs import LSQ, PACT, tiny_values, weights_hash

FOLDED = LSQ | {"batch_norm": {"fold": "training", "freeze_after": 15}}


WAYS = {
    "lsq": {"Recipe": LSQ},
    "folded": {"Recipe": FOLDED},
    "pact": {"Recipe": PACT},
    "folded bf16": {"Recipe": FOLDED, "AMP": {"level": "O2", "dtype": "bf16"}},
    "pact fp16": {"Recipe": PACT, "AMP": {"level": "O1", "dtype": "fp16"}},
}


def qat_config(folder, way, **settings):
    return validate(tiny_values(folder, **settings) | way, {}, "qat")


@pytest.fixture(scope="module", params=WAYS.values(), ids=WAYS)
def way(request):
    return request.param


@pytest.fixture(scope="module")
def run(way, tmp_path_factory):
    return train(qat_config(tmp_path_factory.mktemp("qat") / "run", way))


def test_a_quantized_network_learns(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert losses[-1] < losses[0]
    assert records[-1]["top1"] > 0.3
    assert [layer["quantized"] for layer in json.loads((run / "plan.json").read_text())] == [True, True]


def test_stopping_at_every_step_and_resuming_changes_no_bit(run, way, tmp_path, one_step):
    """Ranges, learned steps and bounds included: none of them starts again."""
    for _ in range(23):
        with pytest.raises(KeyboardInterrupt):
            train(qat_config(tmp_path, way, checkpoints="auto"))
    train(qat_config(tmp_path, way, checkpoints="auto"))
    latest = "checkpoints/latest.lowbit"
    assert weights_hash(tmp_path / latest) == weights_hash(run / latest)


def test_checkpoint_weights_and_export_are_the_trained_model(run, tmp_path):
    trained = open_checkpoint(run / "checkpoints/latest.lowbit")
    bare = validate({"Arch": {"name": "tests.support.tiny_net:TinyNet"}, "DataLoader": {}}, {}, "bare")
    weights = open_weights(bare, run / "checkpoints/latest.pdparams")
    images = np.random.default_rng(0).standard_normal((5, 3, 32, 32), dtype=np.float32)
    expected = trained.model(paddle.to_tensor(images)).numpy()
    np.testing.assert_array_equal(weights.model(paddle.to_tensor(images)).numpy(), expected)
    export_model(
        trained.model,
        tmp_path,
        model_name="tiny",
        image_shape=(3, 32, 32),
        transform_ops=trained.preprocessing,
        classes=trained.classes,
    )
    served = PaddleEngine(tmp_path, onednn=False).run(images)
    np.testing.assert_allclose(served, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_skipped_step_leaves_the_quantizers_as_they_were(way, tmp_path):
    session = loop.open_session(qat_config(tmp_path, way))
    session.calibrate(PlainDisplay(silent=True), tmp_path / "reconstruction")
    session.network.train()
    step = loop.TrainingStep(session)
    batches = list(session.train_loader.epoch(0))
    step(batches[0], 0.01)
    before = session.snapshot().model
    batches[1].images[0] = np.nan
    assert not step(batches[1], 0.01).finite
    after = session.snapshot().model
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


def test_batch_norms_are_folded_in_the_run_and_in_its_checkpoint(tmp_path):
    run = train(qat_config(tmp_path / "run", {"Recipe": FOLDED}, epochs=1))
    trained = open_checkpoint(run)
    assert preparation_of(trained.model).batch_norms.pairs == [("conv", "norm")]
    assert read_checkpoint(run / "checkpoints/latest.lowbit").model["norm.steps"].item() == 12
    recipe = FOLDED | {"batch_norm": {"fold": "training"}}
    values = tiny_values(tmp_path / "wrong", image_shape=[3, 1, 1]) | {"Recipe": recipe}
    values["Arch"]["name"] = "tests.training.test_quantization:FixedSize"
    with pytest.raises(LowbitError, match=r"does not run on the example inputs \[2, 3, 1, 1\].*image_shape"):
        train(validate(values, {}, "qat"))


class FixedSize(paddle.nn.Layer):
    """A network that takes images of 32x32 and no others."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.norm = paddle.nn.BatchNorm2D(3)
        self.head = paddle.nn.Linear(3 * 32 * 32, num_classes)

    def forward(self, x):
        return self.head(self.norm(x).flatten(1))


def test_another_recipe_is_refused_on_resume(run, way, tmp_path):
    changes = [
        ({"weight_bits": 5}, r"with another recipe: rules\.1\.forward\.input\.\w+ was .*, is "),
        (None, "trained with a recipe, and this run has none. Resume with the recipe of that run"),
    ]
    for recipe, message in changes:
        with pytest.raises(LowbitError, match=message):
            train(qat_config(tmp_path, way | {"Recipe": recipe}, checkpoints=str(run)))


def test_what_differs_between_recipes():
    before = {"rules": [{"forward": {"input": {"grid": "int8"}}}], "calibration": {"steps": 1}}
    now = {"rules": [{"forward": {"input": {"grid": "int4"}}}, {"skip": True}], "calibration": {"steps": 1}}
    assert recipe_differences(before, now) == [
        "rules.1.forward.input.grid was int8, is int4",
        "rules.2 was missing, is {'skip': True}",
    ]
    assert recipe_differences(now, now) == []


def test_a_recipe_saved_before_a_key_came_is_the_same(tmp_path):
    run = train(qat_config(tmp_path / "run", {"Recipe": PACT}, epochs=1))
    path = run / "checkpoints/latest.lowbit"
    checkpoint = read_checkpoint(path)
    del checkpoint.recipe["calibration"]["correct_bias"]
    save_checkpoint(path, checkpoint)
    again = train(qat_config(tmp_path / "run", {"Recipe": PACT}, epochs=2, checkpoints=str(path)))
    assert read_checkpoint(again / "checkpoints/latest.lowbit").progress.epoch == 2


def test_all_of_the_state_is_fp32_or_counts(run):
    """Mixed precision rounds products, never what is kept."""
    state = read_checkpoint(run / "checkpoints/latest.lowbit").model
    assert {str(array.dtype) for array in state.values()} <= {"float32", "int32", "int64"}
    assert any("quantizer" in name and array.dtype == np.float32 for name, array in state.items())


def test_the_checkpoint_holds_the_recipe_itself(run):
    saved = read_checkpoint(run / "checkpoints/latest.lowbit").recipe
    assert saved["rules"][0]["forward"]["weight"]["grid"] in ("int4", "int8-narrow")


def test_a_recipe_file_and_slim_are_ways_to_ask(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("weight_bits: 3\nactivation_bits: 5\n")
    for more, grid in (
        ({"Recipe": str(file)}, "int3-narrow"),
        ({"Slim": {"quant": {"name": "pact"}}}, "int8-narrow"),
    ):
        session = loop.open_session(validate(tiny_values(tmp_path) | more, {}, "asked"))
        assert str(session.recipe.rules[0].forward.weight.grid) == grid


@pytest.mark.parametrize("reason", ["the C++ kernels were not built", None])
def test_a_run_says_when_it_quantizes_without_kernels(reason, tmp_path, monkeypatch):
    monkeypatch.setattr("lowbit.training.session.why_missing", lambda: reason)
    notes = loop.open_session(qat_config(tmp_path, WAYS["lsq"])).notes
    assert sum("which is slower: the C++ kernels were not built" in note for note in notes) == bool(reason)


def test_a_quantized_runs_weights_are_a_start_too(run, way, tmp_path):
    weights = str(run / "checkpoints/best.pdparams")
    session = loop.open_session(qat_config(tmp_path, {}, pretrained_model=weights))
    assert sum("without what its quantizers had learned" in note for note in session.notes) == 1
    saved = read_checkpoint(run / "checkpoints/best.lowbit").model
    for name, value in session.model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), saved[name], err_msg=name)
