"""Turns the commands of a config into argument lists, without a shell."""

from __future__ import annotations

import shlex
from functools import lru_cache

from lowbit.tipc.lines import Field, is_absent, shorten

Words = tuple[str, ...]


# A grid of inferences has the same few options over and over.
@lru_cache(maxsize=1024)
def split_words(field: Field, text: str) -> Words:
    """The words of a command as a shell would cut them; what only a shell could do is an error.

    >>> split_words(Field("c.txt", 14, "norm_train", ""), "train.py -o 'a b'")
    ('train.py', '-o', 'a b')
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = tuple(lexer)
    except ValueError:
        raise field.error(f'expected a closed quotation mark in "{shorten(text)}"') from None
    for word in words:
        if set(word) <= set("();<>|&") or any(letter in word for letter in "$`"):
            raise field.error(
                f'expected a program and its arguments, found "{shorten(word)}", which needs a shell: lowbit '
                "runs none; put it into a script and name that here"
            )
    return words


def option(field: Field, value: str | None = None) -> Words:
    """`key=value` with a value from the config; nothing when either is absent.

    A key may have several words, as in `-o Global.epochs:5`.
    """
    value = field.value if value is None else value
    if is_absent(field.key) or is_absent(value):
        return ()
    return split_words(field, f"{field.key}={value}")


def option_with(field: Field, value: str) -> Words:
    """`key=value` with a value of ours, such as a folder, which stays one word whatever is in it."""
    keys = () if is_absent(field.key) else split_words(field, field.key)
    return (*keys[:-1], f"{keys[-1]}={value}") if keys else ()
