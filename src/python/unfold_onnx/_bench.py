"""The results of a measurement."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html import escape
from typing import Any, Optional

HEIGHT = 700
"""The height of the page in a notebook, in pixels."""


@dataclass(frozen=True)
class Latency:
    """A median in seconds, or a ratio of medians, with its 95 % interval."""

    value: float
    low: float
    high: float

    def __repr__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class Measured:
    """One variant of a model."""

    name: str
    """``LN twin``, ``as exported``, ``fused``, ``floor``, or the given name of the model."""
    latency: Optional[Latency]
    """The latency in seconds; ``None`` if it could not be run."""
    ratios: dict[str, Latency]
    """The ratio of its latency to that of each reference, by name."""
    live_peak: Optional[int]
    """The peak of the live bytes, in the order of the graph."""
    reason: str
    """The reason why it could not be run."""

    @classmethod
    def of(cls, data: Any) -> Measured:
        ran: Any = data["outcome"].get("ran")
        if ran is None:
            return cls(data["name"], None, {}, None, data["outcome"]["failed"]["reason"])
        ratios = {one["reference"]: Latency(**one["ratio"]) for one in ran["ratios"]}
        latency = Latency(**ran["latency"]["median"])
        return cls(data["name"], latency, ratios, ran["memory"]["live_peak"], "")


@dataclass(frozen=True)
class Setting:
    """All variants with the same sizes."""

    label: str
    threads: int
    rounds: int
    variants: tuple[Measured, ...]

    @classmethod
    def of(cls, data: Any) -> Setting:
        variants = tuple(Measured.of(one) for one in data["variants"])
        return cls(data["label"], data["threads"], data["rounds"], variants)

    def __getitem__(self, name: str) -> Measured:
        """The variant with a name.

        Raises:
            KeyError: no variant has this name.
        """
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(name)


@dataclass(frozen=True)
class BenchReport:
    """The report of ``unfold bench``. A notebook shows its page with charts."""

    settings: tuple[Setting, ...]
    differs: bool
    """Whether the fused model computes another function."""
    text: str = field(repr=False)
    markdown: str = field(repr=False)
    html: str = field(repr=False)
    """A self-contained page."""

    @classmethod
    def of(cls, texts: list[str]) -> BenchReport:
        data, text, markdown, page = texts
        report: Any = json.loads(data)
        settings = tuple(Setting.of(one) for one in report["settings"])
        return cls(settings, report["differs"], text, markdown, page)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        # The page has its own frame, so that its styles and those of the notebook do not affect each other.
        return f'<iframe srcdoc="{escape(self.html)}" style="width:100%;height:{HEIGHT}px;border:0"></iframe>'
