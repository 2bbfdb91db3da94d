"""The one exception that users are meant to read, and the search for the word they meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LowbitError(Exception):
    """What was asked cannot be done; the message says why and what to do about it.

    Commands print it without a traceback and exit with 2. Anything else that escapes is a bug of ours.
    """


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid word closest to a misspelt one, or None when none is close.

    >>> nearest("momentun", ["momentum", "weight_decay"])
    'momentum'
    """
    # Letter case is the commonest slip of all, and difflib would count it as an edit.
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
