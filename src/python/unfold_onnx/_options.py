"""Checks arguments. The error for an invalid argument contains its name."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

THREADS = 1024
"""The most threads that a measurement may have."""

SPELLINGS = {"center": "centre"}
"""Other spellings of arguments, which are taken as well."""

NEAR = {
    "dim": "dims",
    "dimensions": "dims",
    "atol": "tolerance",
    "rtol": "tolerance",
    "exclude": "skip",
    "keep": "skip",
    "engine": "target",
    "device": "target",
    "out": "output",
    "path": "output",
}
"""Arguments of the command line and of other tools, and the argument that has their meaning here."""

Call = TypeVar("Call", bound="Callable[..., Any]")


def checked(call: Call) -> Call:
    """Wraps a function, so that the error for a misspelled argument suggests the right name."""
    known = [name for name in inspect.signature(call).parameters if name != "options"]

    @functools.wraps(call)
    def answering(*args: Any, **options: Any) -> Any:
        return call(*args, **spelled(call.__name__, options, known))

    return cast(Call, answering)


def spelled(call: str, options: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Replaces other spellings of arguments. The ``TypeError`` for an unknown name suggests the nearest name."""
    right: dict[str, Any] = {}
    for name, value in options.items():
        own = name if name in known else SPELLINGS.get(name, name)
        if own not in known:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}{_nearest(name, known)}")
        if own in right:
            raise TypeError(f"{call}() got two values for the argument {own!r}")
        right[own] = value
    return right


def _nearest(name: str, known: Sequence[str]) -> str:
    meant = NEAR.get(name)
    near = [meant] if meant in known else difflib.get_close_matches(name, known, n=1)
    return f". Did you mean {near[0]!r}?" if near else f"; it takes {', '.join(known)}"


def one_of(name: str, value: object, possible: Sequence[str]) -> None:
    """Refuses a value that is not one of the possible words."""
    if value not in possible:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(possible)}")


def from_zero(name: str, value: float) -> None:
    """Refuses a value that is not a number of at least 0."""
    if not (math.isfinite(_number(name, value)) and value >= 0):
        raise ValueError(f"{name}: {value} is not a number from 0 on")


def above_zero(name: str, value: float) -> None:
    """Refuses a value that is not a number above 0."""
    if not (math.isfinite(_number(name, value)) and value > 0):
        raise ValueError(f"{name}: {value} is not a number above 0")


def _number(name: str, value: object) -> float:
    if not isinstance(value, (int, float)) and not hasattr(value, "__float__"):
        raise TypeError(f"{name}: {value!r} is not a number")
    return float(cast(float, value))


def count(name: str, value: object, most: int | None = None, least: int = 1) -> int:
    """Converts a value to an integer from ``least`` to ``most``. Refuses all other values."""
    try:
        number = operator.index(cast(int, value))
    except TypeError:
        raise TypeError(f"{name}: {value!r} is not an integer") from None
    if number < least:
        raise ValueError(f"{name}: {number} is too few: at least {least}")
    if most is not None and number > most:
        raise ValueError(f"{name}: {number} is too many: at most {most}")
    return number


def counts(name: str, values: Iterable[object]) -> list[int]:
    """Converts values to integers of at least 1."""
    return [count(name, value) for value in values]


def sizes(name: str, given: Mapping[str, int] | None) -> dict[str, int]:
    """Converts the sizes of dimensions to integers of at least 1, by name."""
    if given is None:
        return {}
    if not isinstance(cast(object, given), Mapping):
        raise TypeError(f"{name}: {given!r} is not a mapping of names to sizes")
    return {dim: count(f"{name}[{dim!r}]", size) for dim, size in given.items()}
