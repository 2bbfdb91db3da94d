from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc.lines import Field
from lowbit.tipc.values import (
    MODES,
    DeviceChoice,
    alternatives,
    cpu_word,
    device_choices,
    is_gpu_word,
    is_true,
    per_mode,
)


def _field(value: str) -> Field:
    return Field("c.txt", 7, "key", value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a|b", ("a", "b")), ("a", ("a",)), (" a | b|", ("a", "b")), ("null", ()), ("", ()), ("|", ())],
)
def test_alternatives(value, expected):
    assert alternatives(value) == expected


def test_devices():
    found = device_choices(_field("-1|0|0,1|10|192.168.0.1,192.168.0.2;0,1|a-host,b:80;3"))
    assert found == (
        DeviceChoice(()),
        DeviceChoice((0,)),
        DeviceChoice((0, 1)),
        DeviceChoice((10,)),
        DeviceChoice((0, 1), ("192.168.0.1", "192.168.0.2")),
        DeviceChoice((3,), ("a-host", "b:80")),
    )
    assert [choice.is_cpu for choice in found] == [True, False, False, False, False, False]
    assert [choice.is_launched for choice in found] == [False, False, True, False, True, True]
    assert [choice.nodes for choice in found] == [1, 1, 1, 1, 2, 2]
    assert [choice.text for choice in found] == ["-1", "0", "0,1", "10", "0,1", "3"]


@pytest.mark.parametrize(
    "value", ["", "null", "x", "0,", "0||1", "-2", ";0", "a b;0", "1.2.3.4;", "0,0", "²"]
)
def test_what_is_no_device(value):
    with pytest.raises(LowbitError, match=r"c\.txt, line 7: expected "):
        device_choices(_field(value))


def test_words_for_devices_and_flags():
    assert [is_gpu_word(_field(""), word) for word in ("True", "gpu", "False", "cpu")] == [1, 1, 0, 0]
    assert [cpu_word(word) for word in ("True", "gpu", "False", "cpu")] == ["False", "cpu", "False", "cpu"]
    assert [is_true(_field(""), word) for word in ("True", "False", "null", "")] == [1, 0, 0, 0]
    with pytest.raises(LowbitError, match=r'line 7: .*"Fasle"; did you mean "False"'):
        is_true(_field(""), "Fasle")
    with pytest.raises(LowbitError, match=r'line 7: .*"Ture"; did you mean "True"'):
        is_gpu_word(_field(""), "Ture")


def test_values_per_mode():
    assert per_mode(_field("lite_train_lite_infer=5| whole_infer = a=b")) == {
        "lite_train_lite_infer": "5",
        "whole_infer": "a=b",
    }
    assert per_mode(_field("7")) == dict.fromkeys(MODES, "7")
    assert per_mode(_field("null")) == {}
    with pytest.raises(LowbitError, match=r"line 7: expected one entry for whole_infer"):
        per_mode(_field("whole_infer=1|whole_infer=2"))
