from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc.lines import ConfigFile, Line, read_lines
from tests.tipc.conftest import CONFIGS


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
