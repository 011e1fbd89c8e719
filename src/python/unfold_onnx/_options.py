"""Refuses invalid options by name, with the messages of the command."""

from __future__ import annotations

import math
from collections.abc import Sequence

THREADS = 1024
"""The maximum number of threads of a measurement."""


def one_of(name: str, value: object, possible: Sequence[str]) -> None:
    """Refuses a word that is not a value of the option."""
    if value not in possible:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(possible)}")


def from_zero(name: str, value: float) -> None:
    """Refuses a value that is not a nonnegative number."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: {value} is not a number from 0 on")


def above_zero(name: str, value: float) -> None:
    """Refuses a value that is not a positive number."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: {value} is not a number above 0")


def count(name: str, value: int, most: int | None = None) -> None:
    """Refuses a count below 1 or above ``most``."""
    if value < 1:
        raise ValueError(f"{name}: {value} is too few: at least 1")
    if most is not None and value > most:
        raise ValueError(f"{name}: {value} is too many: at most {most}")
