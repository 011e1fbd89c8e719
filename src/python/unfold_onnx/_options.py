"""Options that mean nothing are refused by their names, in the words of the command."""

from __future__ import annotations

import math
from collections.abc import Sequence

THREADS = 1024
"""No machine is measured with more."""


def one_of(name: str, value: object, possible: Sequence[str]) -> None:
    """Refuses what is none of the words that an option takes."""
    if value not in possible:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(possible)}")


def from_zero(name: str, value: float) -> None:
    """Refuses what is no number, or below 0."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: {value} is not a number from 0 on")


def above_zero(name: str, value: float) -> None:
    """Refuses what is no number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: {value} is not a number above 0")


def count(name: str, value: int, most: int | None = None) -> None:
    """Refuses how many there are of something where there has to be one, and may not be more than so many."""
    if value < 1:
        raise ValueError(f"{name}: {value} is too few: at least 1")
    if most is not None and value > most:
        raise ValueError(f"{name}: {value} is too many: at most {most}")
