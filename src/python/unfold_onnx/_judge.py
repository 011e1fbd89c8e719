"""Judges whether two models are the same function, whatever tools wrote them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unfold_onnx import _native, _options
from unfold_onnx._models import AnyModel, Resolver, StrPath, opened
from unfold_onnx._text import plain

Accepted = Literal["rounding", "casts"]


@dataclass(frozen=True)
class RoundedTensor:
    """A tensor of one model that holds the rounded values of a formula over the other one."""

    name: str
    formula: str
    units: float
    """The largest difference between the tensor and the formula, in units in the last place of the element."""
    allowed: float
    """The largest difference that the rounding of the formula's operations explains, in the same units."""
    is_of_first: bool


@dataclass(frozen=True)
class NarrowingCast:
    """A cast to a narrower type that only one of the models has."""

    name: str
    """The name of the result of the cast."""
    to: str
    """The type that it narrows to."""
    is_of_first: bool


@dataclass(frozen=True)
class Judgement:
    """The verdict on two models; true if they are proved to be the same function."""

    verdict: str
    """``same``, ``rounded``, ``casts``, ``different``, ``undecided`` or ``invalid``, as in ``docs/judge.md``."""
    text: str
    """The lines that ``unfold prove`` prints."""
    tensors: tuple[RoundedTensor, ...] = ()
    """The tensors that equal their formulas only up to rounding."""
    casts: tuple[NarrowingCast, ...] = ()
    output: str = ""
    """The output that differs most, of models that are different."""
    relative: float = 0.0
    """The largest difference in it, divided by its largest magnitude in the first model."""
    first_value: str = ""
    """The first value without a known counterpart, of models that are different."""
    reason: str = ""
    """The missing step of the proof, or the flaw of an invalid model."""

    @classmethod
    def of(cls, data: Any, text: str) -> Judgement:
        return cls(
            data["verdict"],
            text,
            tuple(RoundedTensor(**tensor) for tensor in data.get("tensors", ())),
            tuple(NarrowingCast(**cast) for cast in data.get("casts", ())),
            data.get("output", ""),
            # JSON has null for an infinite number.
            math.inf if data.get("relative", 0.0) is None else data.get("relative", 0.0),
            data.get("first_value", ""),
            data.get("reason", ""),
        )

    def __bool__(self) -> bool:
        return self.verdict == "same"

    def __str__(self) -> str:
        return "\n".join(plain(line) for line in self.text.splitlines())

    def is_accepted(self, accept: Sequence[Accepted] = ()) -> bool:
        """Whether both models are the same function, apart from the differences that ``accept`` names."""
        if self.verdict == "casts":
            return "casts" in accept and (not self.tensors or "rounding" in accept)
        return bool(self) or (self.verdict == "rounded" and "rounding" in accept)


@_options.checked
def judge(
    first: AnyModel,
    second: AnyModel,
    *,
    dims: Mapping[str, int] | None = None,
    points: int = 1,
    seed: int = 0,
    witness: StrPath | None = None,
    allow_external: Sequence[StrPath] = (),
    resolver: Resolver | None = None,
) -> Judgement:
    """Judges whether two models are the same function, whatever tools wrote them.

    Both models are evaluated exactly, in a finite field, at random points. If this gives no proof, they run on random
    inputs.

    Args:
        first: A model.
        second: The same network as another exporter or optimizer wrote it.
        dims: Sizes of symbolic dimensions, by name.
        points: The number of random points.
        seed: The seed of the points.
        witness: The .npz file for inputs that show a difference.
        allow_external: As for :func:`fuse`.
        resolver: As for :func:`fuse`, for both models.

    >>> import unfold_onnx as unfold
    >>> model = "models/digits/un-dynamo.onnx"
    >>> unfold.judge(model, model).verdict
    'same'
    """
    _options.count("points", points)
    sources = [opened(model, allow_external, resolver)[0] for model in (first, second)]
    sizes = _options.sizes("dims", dims)
    data, text = _native.judge(sources[0], sources[1], sizes, points, seed, witness)
    return Judgement.of(json.loads(data), text)


def assert_same(first: AnyModel, second: AnyModel, *, accept: Accepted | Sequence[Accepted] = (), **options: Any) -> None:
    """For tests: fails unless two models are proved to be the same function.

    Args:
        first: A model.
        second: The same network as another exporter or optimizer wrote it.
        accept: Verdicts that pass too: ``rounding`` of stored tensors, and ``casts`` to narrower types.
        options: Those of :func:`judge`.

    Raises:
        AssertionError: the models differ, or the verdict is undecided. The message gives the verdict and a next step.

    >>> import unfold_onnx as unfold
    >>> model = "models/digits/un-dynamo.onnx"
    >>> unfold.assert_same(model, unfold.fuse(model), accept="rounding")
    """
    __tracebackhide__ = True
    accept = [accept] if isinstance(accept, str) else accept
    for verdict in accept:
        _options.one_of("accept", verdict, ("rounding", "casts"))
    judgement = judge(first, second, **options)
    if judgement.is_accepted(accept):
        return
    witness = options.get("witness")
    advice = {
        "rounded": '; accept="rounding" allows it',
        "casts": '; accept=["rounding", "casts"] allows it',
        "different": f"; the inputs in {witness} show it" if witness else '; witness="inputs.npz" saves the inputs that show it',
    }
    subject = "the second model " if judgement.verdict in ("different", "invalid") else ""
    raise AssertionError(f"{subject}{judgement}{advice.get(judgement.verdict, '')}")
