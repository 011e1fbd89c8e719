"""The results of comparing two models."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Optional

from unfold_onnx import _html
from unfold_onnx._plan import Plan
from unfold_onnx._text import counted, plain, power


class UnfoldWarning(UserWarning):
    """A warning about a run: the result could not be verified, or an option had no effect."""


def _number(value: Optional[float]) -> float:
    """A number from JSON, which has null for numbers that are not finite."""
    return math.nan if value is None else value


def _magnitude(error: float) -> float:
    """The size of an error. NaN counts as infinite, so that it is the largest error."""
    return math.inf if math.isnan(error) else error


@dataclass(frozen=True)
class OutputError:
    """The differences between one output of two models."""

    name: str
    absolute: float
    """The largest difference between two elements."""
    relative: float
    """The largest difference, divided by the largest magnitude in the original's output."""
    mismatched: int
    """The number of elements that no tolerance accepts.

    These are integers that differ, and elements that are NaN or infinite in only one of the outputs.
    """


@dataclass(frozen=True)
class Verification:
    """The outcome of running two models; true if they agree."""

    verdict: str
    """``agrees``, ``differs``, ``broken`` (the folded model does not run) or ``could_not_verify``."""
    tolerance: Optional[float]
    outputs: tuple[OutputError, ...]
    reason: str
    """The flaw, or the reason why nothing was compared."""

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

    def __str__(self) -> str:
        if self.verdict == "broken":
            return plain(f"the second model does not run: {self.reason}")
        if self.verdict == "could_not_verify":
            return plain(f"the models could not be compared: {self.reason}")
        worst = max((_magnitude(one.relative) for one in self.outputs), default=0.0)
        verb = "agree" if self else "differ"
        sentence = f"the outputs {verb}: relative error {power(worst, 1)} (tolerance {power(self.tolerance or 0.0)})"
        mismatched = sum(one.mismatched for one in self.outputs)
        return sentence + (f", {counted(mismatched, 'element')} mismatched" if mismatched else "")

    def _repr_html_(self) -> str:
        rows = [[one.name, f"{one.relative:.1e}", f"{one.absolute:.1e}", one.mismatched] for one in self.outputs]
        heads = ["output", "relative", "absolute", "mismatched"]
        return _html.table(f"{self.verdict} {self.reason}".strip(), heads, rows)


@dataclass(frozen=True)
class Proof:
    """The outcome of a proof that two models are the same function; true if they are."""

    verdict: str
    """``proved``, ``disproved``, ``undecided``, or ``invalid`` if no engine accepts the folded model."""
    points: int = 0
    bound: float = 1.0
    """A bound on the probability that they differ nevertheless."""
    tensors: int = 0
    """The number of tensors that were computed again, bit for bit."""
    at: str = ""
    """The first value or tensor that differs."""
    site: Optional[str] = None
    """The site for which it was changed."""
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
        cells = [self.tensors, self.points, power(self.bound)] if self else [self.at, self.site or "", self.reason]
        heads = ["new tensors", "points", "wrong with p <"] if self else ["at", "site", "reason"]
        return _html.table(self.verdict, heads, [cells])


_UNCHANGED: Any = {"operators": {"before": {}, "after": {}}, "file_bytes": {"before": 0, "after": 0}}


@dataclass(frozen=True)
class FuseReport:
    """The report on folding a model. ``str(report)`` is the text that ``unfold fuse`` prints."""

    plan: Plan
    changed: bool
    """Whether the result differs from the model."""
    verified: bool
    """Whether both were run and agree, or are proved to be equal."""
    verification: Optional[Verification]
    """The outcome of running both; ``None`` if they were not run."""
    proof: Optional[Proof]
    """The outcome of the proof; ``None`` if it was not tried."""
    operators: tuple[dict[str, int], dict[str, int]]
    """The number of nodes of each operator before and after."""
    file_bytes: tuple[int, int]
    """The size of the file before and after."""

    @classmethod
    def of(cls, report: str, text: str) -> FuseReport:
        data: Any = json.loads(report)
        proof = data.get("proof")
        # JSON has the index of a site. It is replaced by the name.
        if proof and "site" in proof:
            number = proof["site"]
            proof["site"] = None if number is None else data["sites"][number]["name"]
        sizes: Any = data["result"] or _UNCHANGED
        operators, file_bytes = sizes["operators"], sizes["file_bytes"]
        return cls(
            Plan.of(report, text),
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
