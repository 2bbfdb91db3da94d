from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import paddle
import pytest

from lowbit.config import validate
from lowbit.errors import LowbitError
from lowbit.models import build_model
from lowbit.training import loop
from lowbit.training.checkpoint import read_checkpoint
from lowbit.training.display import PlainDisplay
from lowbit.training.loop import train
from tests.support.runs import LSQ, finish, start_run, tiny_values, weights_hash
from tests.support.two_ranks import LAUNCH_TWO


@pytest.fixture(scope="module")
def fp32(tmp_path_factory):
    """A run in fp32, whose weights the others start from or learn from."""
    folder = tmp_path_factory.mktemp("fp32") / "run"
    return train(validate(tiny_values(folder, epochs=1), {}, "fp32"))


def values(folder, fp32, *, teacher="fp32", recipe=LSQ, amp=None, distillation=None, **settings):
    weights = str(fp32 / "checkpoints/best.pdparams")
    more = {"Distillation": {"teacher": teacher} | (distillation or {}), "Recipe": recipe}
    if amp:
        more["AMP"] = amp
    return tiny_values(folder, **({"pretrained_model": weights, "epochs": 1} | settings)) | more


def config(*arguments, **settings):
    return validate(values(*arguments, **settings), {}, "distilled")


def records(run, kind):
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in lines if record["kind"] == kind]


def test_a_student_learns_and_both_parts_of_its_loss_are_logged(fp32, tmp_path, capsys):
    run = train(config(tmp_path / "run", fp32, epochs=2, distillation={"weight": 0.75}))
    first, last = records(run, "train")
    for record in (first, last):
        assert record["loss"] == pytest.approx(0.25 * record["ce"] + 0.75 * record["kl"], rel=1e-5)
    assert last["ce"] < first["ce"]
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("[Epoch 0"))
    assert " ce: " in line and " kl: " in line
    assert line.count("loss: ") == 1  # what Paddle's tools look for


def test_with_all_the_weight_on_the_teacher_labels_do_not_count(fp32, tmp_path):
    def one_step(labels):
        session = loop.open_session(config(tmp_path, fp32, distillation={"weight": 1.0}))
        session.calibrate(PlainDisplay(silent=True), tmp_path / "reconstruction")
        session.network.train()
        batch = next(session.train_loader.epoch(0))
        batch.labels[:] = labels
        loop.TrainingStep(session)(batch, 0.1)
        return session.snapshot().model

    first, other = one_step(0), one_step(7)
    assert all(first[name].tobytes() == other[name].tobytes() for name in first)


@pytest.mark.parametrize("amp", [None, {"level": "O2", "dtype": "bf16"}, {"level": "O1", "dtype": "fp16"}])
def test_the_teacher_is_in_evaluation_and_does_not_change(fp32, tmp_path, amp):
    session = loop.open_session(config(tmp_path, fp32, amp=amp))
    session.calibrate(PlainDisplay(silent=True), tmp_path / "reconstruction")
    session.network.train()
    teacher = session.teacher
    before = {name: tensor.numpy() for name, tensor in teacher.model.state_dict().items()}
    batch = next(session.train_loader.epoch(0))
    expected = teacher.logits(paddle.to_tensor(batch.images)).numpy()
    result = loop.TrainingStep(session)(batch, 0.1)
    assert result.finite and result.parts["kl"] > 0
    for name, tensor in teacher.model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), before[name])
    after = teacher.logits(paddle.to_tensor(batch.images))
    assert after.stop_gradient
    np.testing.assert_array_equal(after.numpy(), expected)
    np.testing.assert_array_equal(before["conv.weight"], read_checkpoint(best(fp32)).model["conv.weight"])


def best(run):
    return run / "checkpoints/best.lowbit"


@pytest.mark.parametrize("kind", ["run folder", "checkpoint", "weights"])
def test_a_teacher_may_be_any_trained_model(fp32, tmp_path, kind):
    teacher = {"run folder": fp32, "checkpoint": best(fp32), "weights": best(fp32).with_suffix(".pdparams")}
    session = loop.open_session(config(tmp_path, fp32, teacher=str(teacher[kind]), recipe=None))
    assert session.teacher.digest == loop.open_session(config(tmp_path, fp32)).teacher.digest
    assert session.fp32 is None


def test_a_larger_teacher(fp32, tmp_path):
    other = tiny_values(tmp_path / "large", epochs=1)
    other["Arch"] = {"name": "resnet20", "class_num": 10}
    for split in ("Train", "Eval"):
        other["DataLoader"][split]["sampler"]["batch_size"] = 720
    large = train(validate(other, {}, "large"))
    weights = str(large / "checkpoints/best.pdparams")
    session = loop.open_session(
        config(tmp_path, fp32, teacher=weights, distillation={"teacher_model": "resnet20"})
    )
    assert type(session.teacher.model).__name__ != type(session.model).__name__
    assert session.teacher.logits(paddle.ones([2, 3, 32, 32])).shape == [2, 10]
    with pytest.raises(LowbitError, match="weights do not fit the model"):
        loop.open_session(config(tmp_path, fp32, teacher=weights))


@pytest.fixture(scope="module")
def calm(fp32, tmp_path_factory):
    return train(config(tmp_path_factory.mktemp("calm") / "run", fp32))


def test_stopping_at_every_step_and_resuming_changes_no_bit(fp32, calm, tmp_path, one_step):
    for _ in range(11):
        with pytest.raises(KeyboardInterrupt):
            train(config(tmp_path, fp32, checkpoints="auto"))
    train(config(tmp_path, fp32, checkpoints="auto"))
    assert weights_hash(tmp_path / "checkpoints/latest.lowbit") == weights_hash(
        calm / "checkpoints/latest.lowbit"
    )
    for kind in ("baseline", "train", "eval"):
        speed = {"images_per_second": 0, "other_processes": 0}
        assert [r | speed for r in records(tmp_path, kind)] == [r | speed for r in records(calm, kind)] != []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v, _: v.pop("Distillation"), "the teacher fp32: resume it with --teacher fp32"),
        (lambda v, path: v["Distillation"].update(teacher=path), r"of other weights \(SHA-256 .{12}…\)"),
        (lambda v, _: v["Distillation"].update(teacher="gone.pdparams"), "no weights at gone.pdparams"),
        (lambda v, _: v["Distillation"].update(teacher="gone"), "no weights at gone.pdparams"),
        (lambda v, _: v["Distillation"].update(teacher="gone.lowbit"), "gone.lowbit: no lowbit checkpoint"),
    ],
)
def test_another_teacher_or_none_is_refused_on_resume(fp32, calm, tmp_path, change, message):
    changed = values(tmp_path, fp32, checkpoints=str(calm), epochs=2)
    other = loop.open_session(config(tmp_path / "other", fp32))
    other.model = other.fp32
    other.fp32.conv.weight.set_value(paddle.zeros_like(other.fp32.conv.weight))
    paddle.save(other.fp32.state_dict(), str(tmp_path / "other.pdparams"))
    change(changed, str(tmp_path / "other.pdparams"))
    with pytest.raises(LowbitError, match=message):
        train(validate(changed, {}, "changed"))


def test_a_teacher_is_refused_where_there_was_none(fp32, tmp_path):
    run = train(validate(values(tmp_path / "run", fp32) | {"Distillation": None}, {}, "none"))
    with pytest.raises(LowbitError, match="was trained without a teacher"):
        train(config(tmp_path / "more", fp32, checkpoints=str(run), epochs=2))


def test_fp32_needs_something_to_start_from(fp32, tmp_path):
    for change, message in (
        ({"pretrained_model": None}, "what the run starts from, and that is nothing: give --pretrained"),
        ({"recipe": None}, "without a Recipe so is the student"),
        ({"distillation": {"teacher_model": "resnet20"}}, "leave out teacher_model"),
        ({"teacher": "w.pdparams", "distillation": {"teacher_kwargs": {"a": 1}}}, "go with teacher_model"),
    ):
        with pytest.raises(LowbitError, match=message):
            config(tmp_path, fp32, **change)


def test_a_teacher_of_other_classes_is_refused(fp32, tmp_path):
    other = values(tmp_path, fp32, teacher=str(fp32), pretrained_model=None)
    other["Arch"]["class_num"] = 12
    with pytest.raises(LowbitError, match=r"tells 10 classes apart \(0, …\), the data has 12"):
        loop.open_session(validate(other, {}, "other"))
    with pytest.raises(LowbitError, match="classifier is new and knows nothing"):
        renewed = values(tmp_path, fp32, reset_classifier=True)
        renewed["Arch"]["class_num"] = 12
        loop.open_session(validate(renewed, {}, "renewed"))


def first_step(session, folder):
    session.calibrate(PlainDisplay(silent=True), folder / "reconstruction")
    session.network.train()
    return loop.TrainingStep(session)(next(session.train_loader.epoch(0)), 0.1)


@pytest.mark.parametrize("amp", [None, {"level": "O2", "dtype": "bf16"}])
def test_outputs_of_blocks_count_in_the_loss(fp32, tmp_path, amp):
    with_features = {"feature_weight": 8.0}
    session = loop.open_session(config(tmp_path, fp32, amp=amp, distillation=with_features))
    assert session.features.names == ("norm",)  # convolution and batch norm are a block
    seen = first_step(session, tmp_path)
    plain = first_step(loop.open_session(config(tmp_path, fp32, amp=amp)), tmp_path)
    assert seen.parts["kl"] == plain.parts["kl"] and seen.parts["features"] > 0
    # At the first step the weight is whole; nothing keeps looking at the network afterwards.
    assert not any(layer._forward_post_hooks for layer in session.model.sublayers())
    assert seen.loss == pytest.approx(plain.loss + 8.0 * seen.parts["features"], rel=1e-5)


def test_blocks_become_like_the_teachers_and_their_weight_falls(fp32, tmp_path):
    run = train(config(tmp_path / "run", fp32, epochs=3, distillation={"feature_weight": 30.0}))
    first, middle, last = records(run, "train")
    assert last["features"] < 0.8 * first["features"]
    shares = [(one["loss"] - one["kl"]) / one["features"] for one in (first, middle, last)]
    assert 30 > shares[0] > shares[1] > shares[2] > 0


FEATURES = {"feature_weight": 30.0}


@pytest.fixture(scope="module")
def calm_features(fp32, tmp_path_factory):
    return train(config(tmp_path_factory.mktemp("features") / "run", fp32, distillation=FEATURES))


def test_features_resume_bit_for_bit(fp32, calm_features, tmp_path, one_step):
    for _ in range(11):
        with pytest.raises(KeyboardInterrupt):
            train(config(tmp_path, fp32, checkpoints="auto", distillation=FEATURES))
    train(config(tmp_path, fp32, checkpoints="auto", distillation=FEATURES))
    hashes = {weights_hash(run / "checkpoints/latest.lowbit") for run in (calm_features, tmp_path)}
    assert len(hashes) == 1


def test_features_need_the_same_network(fp32, tmp_path):
    features = {"feature_weight": 1.0}
    with pytest.raises(LowbitError, match="give a recipe, or leave feature_weight out"):
        loop.open_session(config(tmp_path, fp32, teacher=str(fp32), recipe=None, distillation=features))
    weights = tmp_path / "resnet20.pdparams"
    paddle.save(build_model("resnet20", 10).state_dict(), str(weights))
    other = features | {"teacher_model": "resnet20"}
    with pytest.raises(LowbitError, match=r"resnet20.pdparams has no layer norm: use teacher fp32"):
        loop.open_session(config(tmp_path, fp32, teacher=str(weights), distillation=other))
    session = loop.open_session(config(tmp_path, fp32, distillation=features))
    name = session.features.names[0]
    wrong = replace(session.features, teacher=paddle.nn.Sequential((name, paddle.nn.Flatten())))
    with (
        pytest.raises(LowbitError, match=r"gives \[2, .* needs a teacher of the same network"),
        wrong.compared() as error,
    ):
        images = paddle.ones([2, 3, 32, 32])
        session.calibrate(PlainDisplay(silent=True), tmp_path / "reconstruction")
        session.model(images), wrong.teacher(images)
        error()


def test_features_of_a_layer_that_is_skipped(fp32, tmp_path):
    session = loop.open_session(config(tmp_path, fp32, distillation={"feature_weight": 1.0}))
    with (
        pytest.raises(LowbitError, match="norm did not run in this step"),
        session.features.compared() as error,
    ):
        error()


def test_two_processes(fp32, tmp_path):
    """Each asks its own copy of the teacher; the metrics are those of both."""
    given = values(tmp_path / "run", fp32, distillation={"weight": 0.9, "temperature": 2.0})
    given["DataLoader"]["Train"]["sampler"]["batch_size"] = 64
    launcher = (*LAUNCH_TWO, "--log_dir", str(tmp_path / "log"))
    finish(start_run(tmp_path / "run", given, launcher=launcher))
    (record,) = records(tmp_path / "run", "train")
    assert record["loss"] == pytest.approx(0.1 * record["ce"] + 0.9 * record["kl"], rel=1e-5)
    assert records(tmp_path / "run", "baseline")[0]["top1"] > 0.2
