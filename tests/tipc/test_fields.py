from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc.fields import (
    MODES,
    ConfigFile,
    DeviceChoice,
    Field,
    Line,
    alternatives,
    cpu_word,
    device_choices,
    is_gpu_word,
    is_true,
    option,
    option_with,
    per_mode,
    read_lines,
    split_words,
)
from tests.support.chains import CONFIGS


def _read(tmp_path, content: bytes) -> ConfigFile:
    file = tmp_path / "c.txt"
    file.write_bytes(content)
    return read_lines(file)


def test_line_ends_blanks_and_byte_order_mark_do_not_matter(tmp_path):
    plain = (CONFIGS / "norm.txt").read_bytes()
    expected = _read(tmp_path, plain).lines
    assert len(expected) == 32
    assert _read(tmp_path, plain.replace(b"\n", b"\r\n")).lines == expected
    assert _read(tmp_path, plain.replace(b"\n", b" \t \n")).lines == expected
    assert _read(tmp_path, b"\xef\xbb\xbf" + plain).lines == expected
    assert _read(tmp_path, plain.rstrip(b"\n")).lines == expected


def test_blank_lines_do_not_count_but_keep_their_number(tmp_path):
    file = _read(tmp_path, b"====a====\n\n  \nmodel_name:x\n")
    assert file.field(2).value == "x"
    assert file.field(2).number == 4
    assert file.field(3).is_absent
    assert file.field(3).number == 5


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("--img-path:http://host/a.jpg", "--img-path", "http://host/a.jpg"),
        ("--pretrained:", "--pretrained", ""),
        (" key : a b ", "key", "a b"),
    ],
)
def test_key_and_value(tmp_path, text, key, value):
    field = _read(tmp_path, text.encode()).field(1)
    assert (field.key, field.value) == (key, value)


@pytest.mark.parametrize(
    ("text", "absent"), [("a:null", True), ("a:", True), ("##", True), ("#", True), ("a:0", False)]
)
def test_absent(tmp_path, text, absent):
    assert _read(tmp_path, text.encode()).field(1).is_absent is absent


def test_titles():
    assert Line(1, "====eval_params====").title == "eval_params"
    assert Line(1, "key:=value=").title is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "c.txt, line 1: expected the title train_params"),
        (b"a:b\nc:\xff\n", "c.txt, line 2: expected text in UTF-8, found byte 0xff"),
        (b"a:b\n\nc:\x00\n", "c.txt, line 3: expected text, found the control character 0x00"),
    ],
)
def test_what_is_no_text_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(LowbitError, match=message):
        _read(tmp_path, content)


@pytest.mark.parametrize("text", ["no colon", "====title===="])
def test_a_field_needs_a_key_and_a_value(tmp_path, text):
    with pytest.raises(LowbitError, match=r"line 1: expected key:value"):
        _read(tmp_path, text.encode()).field(1)


def test_a_file_that_is_not_there(tmp_path):
    (tmp_path / "train_infer_python.txt").write_text("")
    with pytest.raises(LowbitError, match=r'did you mean ".*train_infer_python.txt"'):
        read_lines(tmp_path / "train_infer_pyton.txt")
    with pytest.raises(LowbitError, match="is not a file"):
        read_lines(tmp_path)
    with pytest.raises(LowbitError, match="is not a file"):
        read_lines(tmp_path / "nowhere" / "c.txt")


def test_a_file_that_is_much_too_large(tmp_path):
    with pytest.raises(LowbitError, match="larger than"):
        _read(tmp_path, b"a" * 1_000_001)


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
    assert not is_true(_field(""), "Fasle")
    with pytest.raises(LowbitError, match=r'line 7: .*"Ture"; did you mean "True"'):
        is_true(_field(""), "Ture")
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


def _option(key: str, value: str) -> Field:
    return Field("c.txt", 14, key, value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train.py --pact_quant", ("train.py", "--pact_quant")),
        ("t.py  -o a=[1,2] b={x:1}", ("t.py", "-o", "a=[1,2]", "b={x:1}")),
        ("t.py 'a b' c=\"d e\"", ("t.py", "a b", "c=d e")),
        ("t.py a#b ~/x *.jpg", ("t.py", "a#b", "~/x", "*.jpg")),
        ("", ()),
    ],
)
def test_words(text, words):
    assert split_words(_option("k", text), text) == words


@pytest.mark.parametrize("text", ["a; rm x", "a && b", "a > log", "a|b", "a $(b)", "a $HOME", "a `b`", "a &"])
def test_what_needs_a_shell_is_an_error(text):
    with pytest.raises(LowbitError, match=r"c\.txt, line 14: .*needs a shell"):
        split_words(_option("k", text), text)


def test_an_open_quotation_mark_is_an_error():
    with pytest.raises(LowbitError, match=r"line 14: expected a closed quotation mark"):
        split_words(_option("k", ""), "a 'b")


def test_options():
    assert option(_option("--epochs", "5")) == ("--epochs=5",)
    assert option(_option("-o Global.epochs", "5")) == ("-o", "Global.epochs=5")
    assert option(_option("--epochs", "5"), "6") == ("--epochs=6",)
    assert option(_option("--epochs", "null")) == option(_option("null", "5")) == ()
    assert option_with(_option("-o Global.dir", "x"), "./a b/$c") == ("-o", "Global.dir=./a b/$c")
    assert option_with(_option("null", "null"), "x") == ()
