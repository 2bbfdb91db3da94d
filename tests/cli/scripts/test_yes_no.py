from __future__ import annotations

import pytest
import typer

from lowbit.cli.scripts.yes_no import yes_no_option


@pytest.mark.parametrize(("text", "value"), [("True", True), ("0", False), ("yes", True), (None, None)])
def test_words(text, value):
    assert yes_no_option(help="").callback(text) is value


def test_other_words():
    with pytest.raises(typer.BadParameter, match="expected True or False, got 'maybe'"):
        yes_no_option(help="").callback("maybe")
