from __future__ import annotations

import pytest

from lowbit.tipc.finding import Expected, Finding
from lowbit.tipc.judge_infer import check_answers


@pytest.fixture
def judge(tmp_path):
    def call(text: str, *expected: list[float], count: int | None = None, must_classify: bool = True):
        log = tmp_path / "x.log"
        log.write_text(text, "utf-8")
        images = [Expected(f"images/{name}.jpg", row) for name, row in zip("abc", expected, strict=False)]
        finding = Finding(checks=[], expected=images, image_count=count or len(images)) if expected else None
        return check_answers(log, finding, must_classify=must_classify)

    return call


def test_the_same_as_trained(judge):
    text = "image_name: ./images/a.jpg, class_id: 1, prob: 0.700\nimage_name: b.jpg, class_id: 0, prob: 0.6"
    checks = judge(text, [0.3, 0.7], [0.6, 0.4])
    assert [check.passed for check in checks] == [True, True]
    assert checks[1].detail == "the same for all 2 images that were looked at"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("class_id: 0, prob: 0.700", "trained, class 1 with 0.700; printed, class 0 with 0.700"),
        ("class_id: 1, prob: 0.650", "printed, class 1 with 0.650"),
        ("class_id: 7, prob: 0.700", "printed, class 7 with 0.700"),
        ("image_name: z.jpg, class_id: 1, prob: 0.7", "expected images/a.jpg, it printed z.jpg"),
        ("class_id: 1, prob: 0.7\nclass_id: 1, prob: 0.7", "1 images, but 2 lines"),
    ],
)
def test_another_answer_than_trained(judge, text, reason):
    check = judge(text, [0.3, 0.7])[-1]
    assert check.passed is False
    assert reason in check.detail


def test_of_equals_either_may_be_named(judge):
    assert judge("class_id: 0, prob: 0.498", [0.498, 0.502])[-1].passed is True


def test_images_beyond_the_expected_ones_are_counted(judge):
    text = "\n".join("class_id: 1, prob: 0.7" for _ in range(3))
    assert judge(text, [0.3, 0.7], count=3)[-1].passed is True
    assert judge(text, [0.3, 0.7], count=4)[-1].passed is False


@pytest.mark.parametrize("word", ["nan", "inf", "-0.5", "1.5"])
def test_no_probability(judge, word):
    [check] = judge(f"class_id: 1, prob: {word}")
    assert check.passed is False


def test_no_class(judge):
    assert [check.passed for check in judge("done")] == [False]
    assert [check.passed for check in judge("boxes: 3", must_classify=False)] == [None]


def test_a_model_that_could_not_be_run(judge):
    assert [check.passed for check in judge("class_id: 1, prob: 0.7")] == [True, None]
