"""Which tests of the kernels run without Paddle."""

from __future__ import annotations

from pathlib import Path


def wanted_tests(arguments: list[str], *usual: str) -> list[str]:
    """Pytest's arguments: the usual tests, unless some are named; options alone name none.

    >>> wanted_tests(["-k", "groups"], "tests/kernels")
    ['tests/kernels', '-k', 'groups']
    """
    named = any(Path(argument.split("::")[0]).exists() for argument in arguments)
    return arguments if named else [*usual, *arguments]
