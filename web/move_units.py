"""Sizes, times and rates of a move, as its pages write them. Pure."""

from typing import Final

from controlplane.fleet.tiles import DASH, number

MINUS: Final = "\u2212"


def megabytes(size_bytes: int | None) -> str:
    """Returns MB (of a million bytes) with one decimal under 100."""
    if size_bytes is None:
        return DASH
    if not size_bytes:
        return "0"
    mb = size_bytes / 1e6
    return f"{mb:,.0f}" if mb >= 100 else f"{mb:.1f}" if mb >= 0.1 else f"{mb:.2f}"


def milliseconds(value_ms: float | None) -> str:
    """Returns "335 ms", or seconds from ten of them on."""
    if value_ms is None:
        return DASH
    if value_ms >= 10_000:
        return f"{value_ms / 1000:,.1f} s"
    return f"{short_ms(value_ms)} ms"


def short_ms(value_ms: float | None) -> str:
    """Returns milliseconds without their unit: one decimal under 100."""
    if value_ms is None:
        return DASH
    text = f"{value_ms:,.0f}" if abs(value_ms) >= 100 else f"{value_ms:.1f}"
    return text.removesuffix(".0").replace("-", MINUS)


def rate(size_bytes: int, took_ms: float) -> str:
    """Returns GB/s with two decimals, a dash without a time."""
    return f"{size_bytes / took_ms / 1e6:.2f}" if took_ms > 0 else DASH


def plural(count: int, word: str) -> str:
    """Returns "1 block", "2 blocks"."""
    return f"{number(count)} {word}{'' if count == 1 else 's'}"


def steps(value: float | None) -> str:
    """Returns a freeness in decode steps: one decimal under 100, a dash for None."""
    if value is None:
        return DASH
    if value in (float("inf"), float("-inf")):
        return "idle" if value > 0 else f"{MINUS}∞"
    return f"{value:,.{1 if abs(value) < 100 else 0}f}".replace("-", MINUS)
