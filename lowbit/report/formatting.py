"""Formatting of numbers, in the report and in the terminal."""

from __future__ import annotations

NOTHING = "–"  # noqa: RUF001 (a dash, for a missing value)


def percent(fraction: float | None) -> str:
    """
    >>> percent(0.9876)
    '98.76 %'
    """
    return NOTHING if fraction is None else f"{100 * fraction:.2f} %"


def points(fraction: float | None) -> str:
    """A difference of two fractions in percentage points.

    >>> points(-0.0056), points(0.0)
    ('-0.56', '0.00')
    """
    if fraction is None:
        return NOTHING
    text = f"{100 * fraction:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text


def ratio(value: float | None) -> str:
    """
    >>> ratio(1.897)
    '1.90x'
    """
    return NOTHING if value is None else f"{value:.2f}x"


def size(count: int | None) -> str:
    """Bytes.

    >>> size(1_234_567), size(2048)
    ('1.235 MB', '2.0 KB')
    """
    if count is None:
        return NOTHING
    return f"{count / 1e6:.3f} MB" if count >= 1e6 else f"{count / 1e3:.1f} KB"


def number(value: float | None, digits: int = 4) -> str:
    """With so many significant digits, or all those before the point if there are more.

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
