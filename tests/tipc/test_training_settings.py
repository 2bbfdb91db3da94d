from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc.builder import Builder, Machine
from lowbit.tipc.lines import Field
from lowbit.tipc.training_settings import autocasts, batch_size, chosen_trainers, epochs, use_gpu_words
from lowbit.tipc.values import DeviceChoice

EPOCHS = Field("c.txt", 6, "--epochs", "lite_train_lite_infer=5|whole_train_whole_infer=90")
DEVICES = (DeviceChoice((0,)), DeviceChoice((0, 1)))


@pytest.fixture
def build() -> Builder:
    return Builder(Machine(), ("python",), "./out")


def test_epochs_of_a_mode():
    assert epochs(EPOCHS, "whole_train_whole_infer") == ("--epochs=90",)
    assert epochs(Field("c.txt", 6, "--epochs", "3"), "lite_train_whole_infer") == ("--epochs=3",)
    assert epochs(Field("c.txt", 6, "--epochs", "null"), "lite_train_whole_infer") == ()
    assert epochs(Field("c.txt", 6, "null", "null"), "lite_train_whole_infer") == ()


def test_a_mode_without_epochs_is_an_error_with_a_suggestion():
    with pytest.raises(LowbitError, match=r"c\.txt, line 6: .*Add \|lite_train_whole_infer=5 \(as"):
        epochs(EPOCHS, "lite_train_whole_infer")
    misspelt = Field("c.txt", 6, "--epochs", "lite_train_lite_infr=5")
    with pytest.raises(
        LowbitError, match=r"line 6: expected an entry for mode lite_train_lite_infer, found lite_t"
    ):
        epochs(misspelt, "lite_train_lite_infer")


def test_a_mode_without_a_batch_size_is_noted(build):
    field = Field("c.txt", 8, "--batch-size", "lite_train_lite_infer=4")
    assert batch_size(build, field, "lite_train_lite_infer") == ("--batch-size=4",)
    assert build.notes == []
    assert batch_size(build, field, "lite_train_whole_infer") == ()
    assert build.notes == [
        "line 8: --batch-size has no entry for lite_train_whole_infer; the script's own default holds"
    ]


def test_a_word_for_each_device():
    def words(value: str) -> tuple[str, ...]:
        return use_gpu_words(Field("c.txt", 5, "use_gpu", value), DEVICES)

    assert words("True|False") == ("True", "False")
    assert words("True") == ("True", "True")
    assert words("gpu|null") == ("gpu", "null")
    assert words("null") == ("", "")
    assert words("True|True|False") == ("True", "True")
    with pytest.raises(LowbitError, match=r'line 5: .*did you mean "True"'):
        words("True|Ture")
    with pytest.raises(LowbitError, match=r"line 5: .* for each of the 3 of gpu_list, found 2"):
        use_gpu_words(Field("c.txt", 5, "use_gpu", "True|True"), (*DEVICES, DeviceChoice(())))


def test_autocasts():
    assert autocasts(None) == (None,)
    assert autocasts(Field("c.txt", 6, "auto_cast", "null")) == ("null",)
    assert autocasts(Field("c.txt", 6, "auto_cast", "fp32|amp")) == ("fp32", "amp")


def test_trainers_of_layout_51(build, change):
    assert [one.train.number for one in chosen_trainers(build, change("generic"))] == [16, 17]
    with pytest.raises(LowbitError, match=r'line 15: .*found "pact_trian"; did you mean "pact_train"'):
        chosen_trainers(build, change("generic", {15: "trainer:pact_trian"}))
    assert build.notes == []
    found = chosen_trainers(build, change("generic", {15: "trainer:norm_train|fpgm_train"}))
    assert [one.name for one in found] == ["norm_train"]
    assert build.notes == ["line 18: fpgm_train has no command and is left out"]


def test_trainers_of_layout_32(build, change):
    found = chosen_trainers(build, change("norm", {13: "trainer:norm_train|amp_train"}))
    assert [(one.name, one.train.value) for one in found] == [
        ("norm_train", "train.py"),
        ("amp_train", "train.py"),
    ]
    assert build.notes == ["line 13: amp_train runs the command of norm_train, the only one that there is"]
    with pytest.raises(
        LowbitError, match=r'line 13: .*line 14, found "norm_trian"; did you mean "norm_train"'
    ):
        chosen_trainers(build, change("norm", {13: "trainer:norm_trian"}))
    with pytest.raises(LowbitError, match=r"line 13: .*there is none"):
        chosen_trainers(build, change("norm", {14: "##"}))
    with pytest.raises(LowbitError, match=r"line 13: expected a trainer"):
        chosen_trainers(build, change("norm", {13: "trainer:null"}))
