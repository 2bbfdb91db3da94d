"""Figures as people read them, in the report and in the terminal alike."""

from __future__ import annotations

NOTHING = "–"  # noqa: RUF001 (a dash, for what there is not)


def percent(fraction: float | None) -> str:
    """
    >>> percent(0.9876)
    '98.76 %'
    """
    return NOTHING if fraction is None else f"{100 * fraction:.2f} %"


def size(count: int | None) -> str:
    """Bytes.

    >>> size(1_234_567), size(2048)
    ('1.235 MB', '2.0 KB')
    """
    if count is None:
        return NOTHING
    return f"{count / 1e6:.3f} MB" if count >= 1e6 else f"{count / 1e3:.1f} KB"


def number(value: float | None, digits: int = 4) -> str:
    """With so many digits, or, where a number has more before the point, all of those.

    >>> number(0.123456), number(5852.3, 3)
    ('0.1235', '5852')
    """
    if value is None:
        return NOTHING
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def decibels(value: float | None) -> str:
    """
    >>> decibels(18.26)
    '18.3 dB'
    """
    return NOTHING if value is None else f"{value:.1f} dB"
