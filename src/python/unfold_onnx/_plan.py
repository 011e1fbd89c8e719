"""The plan of folding, as data."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Optional

from unfold_onnx import _html
from unfold_onnx._text import counted, plain


@dataclass(frozen=True)
class Refusal:
    """The reason why a site or a part of it stays.

    ``docs/refusals.md`` has a section for each ``reason``, with a remedy.
    """

    reason: str
    """The name of the reason, such as ``other-reader``."""
    at: str
    """The node or the value; empty if it is the site itself."""
    detail: object = None
    """Details of the reason, if there are any."""

    @classmethod
    def of(cls, data: Any) -> Refusal:
        return cls(data["reason"]["kind"], data["at"], data["reason"].get("detail"))

    def __str__(self) -> str:
        return plain(f"{self.reason} at {self.at}" if self.at else self.reason)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one affine of a site."""

    outcome: str
    """``folded``, ``partly`` (only the shift folds), ``scaled`` (only the scale folds) or ``kept``."""
    direction: Optional[str]
    """``forward``, ``backward`` or ``merged``, if it is folded."""
    into: tuple[str, ...]
    """The nodes that absorb it."""
    refusals: tuple[Refusal, ...]
    """The reasons why it, or a part of it, stays."""

    @classmethod
    def of(cls, data: Any) -> Optional[Outcome]:
        if data is None:
            return None
        refusals = [data.get(key) for key in ("scale", "shift", "forward", "backward")]
        return cls(
            data["outcome"],
            data.get("direction"),
            tuple(data.get("into", ())),
            tuple(Refusal.of(refusal) for refusal in refusals if refusal is not None),
        )

    def __str__(self) -> str:
        into = plain(", ".join(self.into))
        why = "; ".join(map(str, self.refusals))
        if self.outcome == "folded":
            return f"{self.direction} into {into}"
        part = {"partly": "shift only, into ", "scaled": "scale only, into "}.get(self.outcome)
        return f"{part}{into}; {why}" if part else f"stays: {why}"


@dataclass(frozen=True)
class Site:
    """A normalizer or another affine, with its outcome."""

    name: str
    """The unique name: a module path or a node name."""
    kind: str
    """The kind, such as ``BN``, ``UN``, ``LN``, ``attention scale``."""
    family: str
    """The family: ``offline``, ``pointwise``, ``online``, ``scale`` or ``linear``."""
    channels: int
    axis: int
    nodes: tuple[str, ...]
    pre: Optional[Outcome]
    """The affine before the core, if there is one."""
    core: Optional[Outcome]
    """The core, if cheaper operators were considered but cannot replace it."""
    post: Optional[Outcome]
    """The affine after the core, or all of an offline normalizer."""
    folded: bool
    """Whether its affine folds."""

    @classmethod
    def of(cls, data: Any) -> Site:
        pre, core, post = (Outcome.of(data[part]) for part in ("pre", "core", "post"))
        kind = data["kind"]
        return cls(
            data["name"],
            kind["name"],
            kind["family"],
            data["channels"],
            data["axis"],
            tuple(data["nodes"]),
            pre,
            core,
            post,
            data["folded"],
        )

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of its parts, in the order of execution."""
        return tuple(part for part in (self.pre, self.core, self.post) if part is not None)

    def __repr__(self) -> str:
        outcomes = "; ".join(map(str, self.outcomes))
        return plain(f"<Site {self.name} ({self.kind}, {self.channels} channels): {outcomes}>")

    def _repr_html_(self) -> str:
        return _html.table(
            f"{self.name} ({self.kind})", ["fold", "nodes"], [[outcome, ", ".join(self.nodes)] for outcome in self.outcomes]
        )


@dataclass(frozen=True)
class Tensor:
    """A tensor that is in the result but not in the model."""

    name: str
    data_type: str
    shape: tuple[int, ...]
    formula: str
    """The formula over the constants of the model."""
    inputs: tuple[str, ...]
    """The constants in the formula."""
    sites: tuple[str, ...]
    """The sites for which it is stored."""

    @classmethod
    def of(cls, data: Any) -> Tensor:
        return cls(
            data["name"],
            data["data_type"],
            tuple(data["shape"]),
            data["formula"],
            tuple(data["inputs"]),
            tuple(data["sites"]),
        )

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return plain(f"<Tensor {self.name}: {self.data_type}[{shape}] = {self.formula}>")


@dataclass(frozen=True)
class Plan:
    """The plan of folding a model. ``str(plan)`` is the text that ``unfold inspect`` prints."""

    sites: tuple[Site, ...]
    """The sites, in the order of execution."""
    tensors: tuple[Tensor, ...]
    """The new tensors, as formulas over those of the model."""
    constants: int
    """The number of operators with constant results, which are stored."""
    duplicates: int
    """The number of operators that compute the same value as another operator."""
    growth: int
    """The number of bytes that copies of shared weights add."""
    text: str = field(repr=False)
    """The plan as the command prints it."""
    bound: Optional[str] = None
    """The stage whose bound stops the run; ``None`` if the run stops because nothing changes any more."""

    @classmethod
    def of(cls, report: str, text: str) -> Plan:
        data: Any = json.loads(report)
        tidy = data.get("tidy", {})
        return cls(
            tuple(Site.of(site) for site in data["sites"]),
            tuple(Tensor.of(tensor) for tensor in data["tensors"]),
            tidy.get("constants", 0),
            tidy.get("duplicates", 0),
            data.get("growth", {}).get("bytes", 0),
            text,
            data.get("stopped", {}).get("at"),
        )

    @property
    def folded(self) -> tuple[Site, ...]:
        """The sites that fold completely."""
        return tuple(site for site in self.sites if site.folded)

    @property
    def kept(self) -> tuple[Site, ...]:
        """The sites that stay completely or in part."""
        return tuple(site for site in self.sites if not site.folded)

    def __getitem__(self, name: str) -> Site:
        """The site with a name.

        Raises:
            KeyError: no site has this name.
        """
        for site in self.sites:
            if site.name == name:
                return site
        raise KeyError(name)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Plan: {len(self.folded)} of {len(self.sites)} sites fold, {counted(len(self.tensors), 'new tensor')}>"

    def _repr_html_(self) -> str:
        rows = [
            [site.name, site.kind, site.channels, "; ".join(map(str, site.outcomes))] for site in self.sites
        ]
        return _html.table(repr(self)[1:-1], ["site", "kind", "channels", "fold"], rows)


@dataclass(frozen=True)
class Provenance:
    """One run that folded a model, from its metadata."""

    version: str
    """The version of unfold."""
    original: Optional[str]
    """The SHA-256 of the model that was folded."""
    folded: str
    """The number of folded sites of each kind."""
    skip: tuple[str, ...]
    max_growth: float
    centre: bool
    merge_norms: bool
    constant_norms: bool

    @classmethod
    def of(cls, data: Any) -> Provenance:
        options = data["options"]
        return cls(
            data["version"],
            data.get("original"),
            data["folded"],
            tuple(options.get("skip", ())),
            options.get("max_growth", 5.0),
            options.get("centre", False),
            options.get("merge_norms", False),
            options.get("constant_norms", False),
        )


@dataclass(frozen=True)
class Inspection:
    """The normalizers of a model, and the earlier runs that folded it."""

    plan: Plan
    provenance: tuple[Provenance, ...]
    """The runs that folded it, the oldest first."""

    @classmethod
    def of(cls, report: tuple[str, str, str]) -> Inspection:
        plan, text, provenance = report
        times: Any = json.loads(provenance)
        return cls(
            Plan.of(plan, text),
            tuple(Provenance.of(time) for time in times),
        )

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites of the plan."""
        return self.plan.sites

    def __str__(self) -> str:
        return str(self.plan)

    def __repr__(self) -> str:
        return f"<Inspection: {len(self.sites)} sites, folded {len(self.provenance)} times before>"

    def _repr_html_(self) -> str:
        return _html.shown(self.plan)
