from __future__ import annotations

import pytest

from lowbit.errors import LowbitError, did_you_mean


@pytest.mark.parametrize("value", [5000 * "a", 5000 * "a ", 5000 * "\n a", "a" * 10**6, "\U0001f600" * 4000])
def test_a_long_value_is_shortened_and_the_rest_stays(value):
    message = str(LowbitError(f"config.yaml:7: got {value!r}; give a number"))
    assert message.startswith("config.yaml:7: got '") and "give a number" in message
    assert len(message) < 1000 and "characters)" in message


def test_a_usual_message_stays_as_it_is():
    usual = f"/data/{'x' * 200}/images: no such folder; give the folder that holds the data\nü 中 é"
    assert str(LowbitError(usual)) == usual


@pytest.mark.parametrize("character", ["\0", "\x1b", "\r", "\x85", "\u2028", "\ud800", "\udcff"])
def test_what_cannot_be_printed_is_escaped(character):
    message = str(LowbitError(f"a{character}b: no such file"))
    assert message == f"a{ascii(character)[1:-1]}b: no such file"
    message.encode("utf-8")


def test_hints_survive_a_long_word():
    assert len(str(LowbitError(f"no key, {did_you_mean('k' * 10**5, ['epochs', 'seed'])}"))) < 100
