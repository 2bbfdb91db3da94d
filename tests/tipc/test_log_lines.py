from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowbit.deploy.infer import Prediction
from lowbit.tipc.log_lines import Answer, answers, last_accuracy, last_loss
from lowbit.training.display import StepReport, accuracy_line


@pytest.fixture
def log(tmp_path):
    def write(text: str):
        (tmp_path / "x.log").write_text(text, "utf-8")
        return tmp_path / "x.log"

    return write


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("loss: 1.5\nloss: 2.24239, avg_ips: 1", 2.24239),
        ("CELoss: 9.0, loss: 2.5e-3", 2.5e-3),
        ("Loss=0.7", 0.7),
        ("loss_scale: 128", None),
        ("gloss: 1", None),
        ("loss: none", None),
        ("", None),
    ],
)
def test_losses(log, text, loss):
    assert last_loss(log(text)) == loss


@pytest.mark.parametrize("word", ["nan", "NaN", "inf", "-inf"])
def test_losses_that_are_no_numbers(log, word):
    assert not math.isfinite(last_loss(log(f"loss: 1.0\nloss: {word}, x")))


@given(loss=st.floats(0, 1e6), top1=st.floats(0, 1))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_lines_that_lowbit_prints(log, loss, top1):
    report = StepReport(0, 10, {"top1": top1, "loss": loss}, 0.1, 0.1, 0.1, 4.0)
    assert last_loss(log(report.log_line())) == pytest.approx(loss, abs=1e-5)
    assert last_accuracy(log(accuracy_line({"top1": top1}))) == pytest.approx(top1, abs=1e-3)
    prediction = Prediction("./a, b/c.jpg", (8,), (top1,), ("x",))
    [found] = answers(log(prediction.line()))
    assert (found.image, found.class_id) == ("./a, b/c.jpg", 8)
    assert found.probability == pytest.approx(top1, abs=1e-3)


def test_the_last_accuracy_of_the_model_itself(log):
    assert last_accuracy(log(" * Acc@1 0.1\n * Acc@1 0.564 Acc@5 0.790\n * fp32 Acc@1 0.9")) == 0.564
    assert last_accuracy(log("Acc@1 0.3")) is None


def test_answers_of_other_scripts(log):
    text = "ONNXRuntime predict: \nclass_id: 8, prob: 9.09e-1\n"
    text += "demo.jpg:\tclass id(s): [8, 7], score(s): [0.91, 0.05]"
    assert answers(log(text)) == [Answer(None, 8, 0.909), Answer("demo.jpg", 8, 0.91)]


@given(st.binary(max_size=200))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(tmp_path, content):
    file = tmp_path / "any.log"
    file.write_bytes(content)
    last_loss(file), last_accuracy(file), answers(file)
