"""What was found out about two models."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Optional

from unfold_onnx import _html
from unfold_onnx._plan import Plan
from unfold_onnx._text import counted, plain, power


class UnfoldWarning(UserWarning):
    """What somebody should know who folds a model: that it could not be verified, or that nothing came of an option."""


def _number(value: Optional[float]) -> float:
    """JSON has no word for what is not finite."""
    return math.nan if value is None else value


@dataclass(frozen=True)
class OutputError:
    """How far one output of two models is apart."""

    name: str
    absolute: float
    """The largest difference between two elements."""
    relative: float
    """The same, divided by the largest magnitude in the original's output."""
    mismatched: int
    """Elements that no tolerance excuses: integers that differ, and what is NaN or infinite in one only."""


@dataclass(frozen=True)
class Verification:
    """Whether two models agree when both run. It is true where they do."""

    verdict: str
    """``agrees``, ``differs``, ``broken`` (the other one does not run) or ``could_not_verify``."""
    tolerance: Optional[float]
    outputs: tuple[OutputError, ...]
    reason: str
    """What is wrong, or why nobody knows."""

    @classmethod
    def of(cls, data: Any) -> Verification:
        if data["verdict"] != "compared":
            return cls(data["verdict"], None, (), data["reason"])
        outputs = tuple(
            OutputError(one["name"], _number(one["absolute"]), _number(one["relative"]), one["mismatched"])
            for one in data["outputs"]
        )
        tolerance: float = data["tolerance"]
        agrees = all(one.mismatched == 0 and one.relative <= tolerance for one in outputs)
        return cls("agrees" if agrees else "differs", tolerance, outputs, "")

    def __bool__(self) -> bool:
        return self.verdict == "agrees"

    def _repr_html_(self) -> str:
        rows = [[one.name, f"{one.relative:.1e}", f"{one.absolute:.1e}", one.mismatched] for one in self.outputs]
        heads = ["output", "relative", "absolute", "mismatched"]
        return _html.table(f"{self.verdict} {self.reason}".strip(), heads, rows)


@dataclass(frozen=True)
class Proof:
    """What came of a proof that two models are the same function. It is true where they are."""

    verdict: str
    """``proved``, ``disproved``, ``undecided``, or ``invalid`` where no engine takes the folded model."""
    points: int = 0
    bound: float = 1.0
    """A bound on the probability that they differ, and nobody saw it."""
    tensors: int = 0
    """How many tensors were computed again, bit for bit."""
    at: str = ""
    """The first value, or the tensor, that is wrong."""
    site: Optional[str] = None
    """The site for whose sake it was changed."""
    reason: str = ""

    @classmethod
    def of(cls, data: Any) -> Proof:
        return cls(**data)

    def __bool__(self) -> bool:
        return self.verdict == "proved"

    def __str__(self) -> str:
        if self.verdict == "proved":
            tensors, points = counted(self.tensors, "new tensor"), counted(self.points, "point")
            doubt = f", wrong with p < {power(self.bound)}" if self.bound else ""
            return f"proved to be the same function: {tensors}, {points}{doubt}"
        if self.verdict == "undecided":
            return plain(f"it could not be decided: {self.reason}")
        if self.verdict == "invalid":
            return plain(f"the folded model is invalid at `{self.at}`: {self.reason}")
        site = f" (for the site {self.site})" if self.site else ""
        return plain(f"something else is computed at `{self.at}`{site}: {self.reason}")

    def _repr_html_(self) -> str:
        told = [self.tensors, self.points, power(self.bound)] if self else [self.at, self.site or "", self.reason]
        heads = ["new tensors", "points", "wrong with p <"] if self else ["at", "site", "reason"]
        return _html.table(self.verdict, heads, [told])


_UNCHANGED: Any = {"operators": {"before": {}, "after": {}}, "file_bytes": {"before": 0, "after": 0}}


@dataclass(frozen=True)
class FuseReport:
    """What was done to a model. ``str(report)`` is what ``unfold fuse`` prints."""

    plan: Plan
    changed: bool
    """Whether the result differs from the model."""
    verified: bool
    """Whether both were run and agree, or are proved to be the same."""
    verification: Optional[Verification]
    """What running both said; ``None`` where they were not run."""
    proof: Optional[Proof]
    """What the proof said; ``None`` where none was tried."""
    operators: tuple[dict[str, int], dict[str, int]]
    """How many nodes of each operator there were, and are."""
    file_bytes: tuple[int, int]
    """The size of the file before and after."""

    @classmethod
    def of(cls, told: str, text: str) -> FuseReport:
        data: Any = json.loads(told)
        proof = data.get("proof")
        # A site is a number there, and a name for people.
        if proof and "site" in proof:
            number = proof["site"]
            proof["site"] = None if number is None else data["sites"][number]["name"]
        sizes: Any = data["result"] or _UNCHANGED
        operators, file_bytes = sizes["operators"], sizes["file_bytes"]
        return cls(
            Plan.of(told, text),
            data["changed"],
            data["verified"],
            Verification.of(data["verification"]) if data["verification"] else None,
            Proof.of(proof) if proof else None,
            (operators["before"], operators["after"]),
            (file_bytes["before"], file_bytes["after"]),
        )

    def __str__(self) -> str:
        return self.plan.text

    def __repr__(self) -> str:
        before, after = (sum(one.values()) for one in self.operators)
        nodes = f", {before} to {after} operators" if self.changed else ", nothing to fold"
        verified = "verified" if self.verified else "not verified"
        return f"<FuseReport: {len(self.plan.folded)} of {len(self.plan.sites)} sites{nodes}, {verified}>"

    def _repr_html_(self) -> str:
        before, after = self.operators
        names = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
        rows = [[name, before.get(name, 0), after.get(name, 0)] for name in names]
        table = _html.table(repr(self)[1:-1], ["operator", "before", "after"], rows)
        return _html.shown(self.plan) + table
