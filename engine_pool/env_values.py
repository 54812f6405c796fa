"""Reads settings from an environment; a value that cannot work is an error naming its variable."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TypeVar

from engine_pool.errors import ConfigError

T = TypeVar("T")
D = TypeVar("D")


def read(environ: Mapping[str, str], name: str, parse: Callable[[str], T], default: D) -> T | D:
    """Returns a variable's parsed value; the default when it is unset or empty.

    Raises: ConfigError.
    """
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        return parse(text)
    except ValueError as error:
        is_choice = isinstance(parse, type) and issubclass(parse, Enum)
        expected = " or ".join(str(m.value) for m in parse) if is_choice else str(error)
        raise ConfigError(f"{name}={text!r}: expected {expected}") from None


def integer(low: int, high: int) -> Callable[[str], int]:
    """Makes a parser of whole numbers in a range."""

    def parse(text: str) -> int:
        if not text.lstrip("-").isdigit() or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def switch(text: str) -> bool:
    """Parses on or off."""
    if text.lower() not in ("on", "off"):
        raise ValueError("on or off")
    return text.lower() == "on"


def one_of(*names: str) -> Callable[[str], str]:
    """Makes a parser of one of these words."""

    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(" or ".join(names))
        return text

    return parse


def number(low: float, high: float = float("inf")) -> Callable[[str], float]:
    """Makes a parser of numbers in a range."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high or value == float("inf"):
            upper = "" if high == float("inf") else f" and at most {high:g}"
            raise ValueError(f"a number of at least {low:g}{upper}")
        return value

    return parse
