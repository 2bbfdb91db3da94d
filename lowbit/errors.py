"""LowbitError, the exception for errors that users can fix, and suggestions for misspelt words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_LONGEST_VALUE = 300  # characters without a blank between them; no usual path is longer
_LONGEST_LINE = 2000
_UNPRINTABLE = re.compile("[^\\S \n\t]|[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


class LowbitError(Exception):
    """An error that the user can fix; the message says what is wrong and what to do.

    Commands print it without a traceback and exit with 2. Anything else that escapes is a bug in lowbit.
    Values in the message may be of any length and content: long ones are shortened here, and characters that
    a terminal cannot show are escaped.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(readable(message))


def readable(message: str) -> str:
    """A message with long values cut in the middle and unprintable characters escaped.

    >>> readable("no file " + 5000 * "a" + "\\x00; give another")
    'no file aaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaa\\\\x00; (5005 characters) give another'
    """
    message = _UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], str(message))
    message = re.sub(rf"\S{{{_LONGEST_VALUE + 1},}}", lambda found: _shortened(found[0], 20), message)
    return "\n".join(
        _shortened(line, 400) if len(line) > _LONGEST_LINE else line for line in message.split("\n")
    )


def _shortened(text: str, ends: int) -> str:
    return f"{text[:ends]}...{text[-ends:]} ({len(text)} characters)"


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid word closest to a misspelt one, or None when none is close.

    >>> nearest("momentun", ["momentum", "weight_decay"])
    'momentum'
    """
    # Letter case is the most common mistake; difflib would count it as an edit.
    by_folded = {candidate.casefold(): candidate for candidate in valid}
    found = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """The end of an error message about an unknown word: the nearest valid one, or all of them.

    >>> did_you_mean("cosin", ["Cosine", "Piecewise"])
    'did you mean "Cosine"?'
    """
    words = sorted(valid)
    guess = nearest(word, words)
    return f'did you mean "{guess}"?' if guess else f"valid: {', '.join(words)}"
