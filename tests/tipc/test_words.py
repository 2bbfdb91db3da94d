from __future__ import annotations

import pytest

from lowbit.errors import LowbitError
from lowbit.tipc.lines import Field
from lowbit.tipc.words import option, option_with, split_words


def _field(key: str, value: str) -> Field:
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
    assert split_words(_field("k", text), text) == words


@pytest.mark.parametrize("text", ["a; rm x", "a && b", "a > log", "a|b", "a $(b)", "a $HOME", "a `b`", "a &"])
def test_what_needs_a_shell_is_an_error(text):
    with pytest.raises(LowbitError, match=r"c\.txt, line 14: .*needs a shell"):
        split_words(_field("k", text), text)


def test_an_open_quotation_mark_is_an_error():
    with pytest.raises(LowbitError, match=r"line 14: expected a closed quotation mark"):
        split_words(_field("k", ""), "a 'b")


def test_options():
    assert option(_field("--epochs", "5")) == ("--epochs=5",)
    assert option(_field("-o Global.epochs", "5")) == ("-o", "Global.epochs=5")
    assert option(_field("--epochs", "5"), "6") == ("--epochs=6",)
    assert option(_field("--epochs", "null")) == option(_field("null", "5")) == ()
    assert option_with(_field("-o Global.dir", "x"), "./a b/$c") == ("-o", "Global.dir=./a b/$c")
    assert option_with(_field("null", "null"), "x") == ()
