from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lowbit.config.yaml_file import parse_yaml, read_yaml
from lowbit.errors import LowbitError


def read(folder, text):
    file = folder / "c.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(file)


def refusal(folder, text) -> str:
    with pytest.raises(LowbitError) as caught:
        read(folder, text)
    return str(caught.value).replace(f"{folder}/", "")


def test_every_key_and_item_has_its_line(tmp_path):
    values, lines = read(tmp_path, "a:\n  b: 1\n  c:\n    - x: 1\n    - 2\n# note\nd: {e: 3}\n")
    assert values == {"a": {"b": 1, "c": [{"x": 1}, 2]}, "d": {"e": 3}}
    assert lines[("a",)] == 1
    assert lines[("a", "b")] == 2
    assert lines[("a", "c")] == 3
    assert lines[("a", "c", 0, "x")] == 4
    assert lines[("a", "c", 1)] == 5
    assert lines[("d", "e")] == 7


def test_windows_files(tmp_path):
    values, lines = read(tmp_path, b"\xef\xbb\xbfa: 1\r\nb:\r\n  c: 2\r\n")
    assert values == {"a": 1, "b": {"c": 2}}
    assert lines[("b", "c")] == 3


def test_an_empty_file_has_no_sections(tmp_path):
    assert read(tmp_path, "# nothing\n") == ({}, {})


def test_a_key_given_twice(tmp_path):
    message = refusal(tmp_path, "Global:\n  epochs: 1\n  seed: 2\n  epochs: 3\n")
    assert (
        message == 'c.yaml:4: the key "epochs" stands here for the second time (first in line 2); remove one'
    )


def test_the_same_key_in_two_sections_is_fine(tmp_path):
    assert read(tmp_path, "a: {x: 1}\nb: {x: 2}\n1: y\n'1': z\n")[0] == {
        "a": {"x": 1},
        "b": {"x": 2},
        1: "y",
        "1": "z",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\tb: 1\n", r"c.yaml:2: not valid YAML: found character '\t' that cannot start any token"),
        ("a: [1\nb: 2\n", "c.yaml:2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "c.yaml:2: not valid YAML: but found another document"),
        ("a: 1\nb: \x07\n", "c.yaml:2: not valid YAML: the character U+0007 is not allowed"),
        ("a: *b\n", "c.yaml:1: not valid YAML: found undefined alias 'b'"),
        ("? [a]\n: b\n", "c.yaml:1: a key must be a word"),
        ("a: &a [*a]\n", "c.yaml: nested too deeply, or an alias (*name) inside of itself"),
        ("a: " + "[" * 3000 + "]" * 3000, "c.yaml: nested too deeply"),
        ("a: !!int ''\n", "c.yaml: not valid YAML"),
        ("a: !!bool maybe\n", "c.yaml: not valid YAML"),
        ("a: " + "9" * 5000, "c.yaml: not valid YAML"),
        (
            "a: !!python/object/apply:os.getcwd []\n",
            "c.yaml:1: not valid YAML: could not determine a constructor",
        ),
        ("a: !!python/name:os.system\n", "c.yaml:1: not valid YAML: could not determine a constructor"),
        (b"a: \xff\xfe\n", "cannot read the config file c.yaml: 'utf-8' codec"),
    ],
)
def test_what_is_not_yaml(tmp_path, text, message):
    assert message in refusal(tmp_path, text)


def test_aliases_of_aliases_do_not_fill_the_memory(tmp_path):
    rows = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    rows += [
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    assert "more than 100000 entries" in refusal(tmp_path, "\n".join(rows))


def test_no_file(tmp_path):
    with pytest.raises(LowbitError, match="no config file"):
        read_yaml(tmp_path / "c.yaml")
    with pytest.raises(LowbitError, match="cannot read the config file"):
        read_yaml(tmp_path)


def test_what_an_alias_shares_becomes_copies(tmp_path):
    values, lines = read(tmp_path, "a: &x {n: 1}\nb: *x\nc:\n  <<: *x\n  m: 2\nd: {<<: [*x], n: 3}\n")
    assert values["b"] == {"n": 1}
    assert values["a"] is not values["b"]
    assert values["c"] == {"n": 1, "m": 2}
    assert values["d"] == {"n": 3}
    assert lines[("c", "n")] == 1
    assert lines[("d", "n")] == 6


def test_dates_are_text():
    assert parse_yaml("2024-05-01") == "2024-05-01"
    assert parse_yaml("2024-13-45") == "2024-13-45"


@given(st.text())
def test_a_piece_of_yaml_is_a_value_or_a_value_error(text):
    try:
        parse_yaml(text)
    except ValueError as error:
        assert not isinstance(error, UnicodeError)


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
        max_leaves=8,
    )
)
def test_what_was_written_is_read(tmp_path_factory, value):
    text = yaml.safe_dump({"value": value})
    assert read(tmp_path_factory.mktemp("yaml"), text)[0] == {"value": value}


@pytest.mark.parametrize("text", ['a: "x\\0y"', 'a: "\\ud800"', '"\\0": 1', "a: [[{b: '\\0', c: \"\\0\"}]]"])
def test_text_that_no_path_can_be_is_an_error(tmp_path, text):
    file = tmp_path / "c.yaml"
    file.write_text(text, "utf-8")
    with pytest.raises(
        LowbitError, match=r"c\.yaml: not valid YAML: the character U\+\w{4} is not allowed"
    ) as caught:
        read_yaml(file)
    assert "\n" not in str(caught.value)


def test_files_without_end_and_names_that_cannot_be(tmp_path):
    (tmp_path / "endless.yaml").symlink_to("/dev/zero")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    for name in ("endless.yaml", "loop.yaml", "nul\0.yaml", "x" * 5000, "."):
        with pytest.raises(LowbitError) as caught:
            read_yaml(tmp_path / name)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 600
