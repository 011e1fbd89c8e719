"""Tables of notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Protocol


class Shown(Protocol):
    """What a notebook shows."""

    def _repr_html_(self) -> str: ...


def shown(one: Shown) -> str:
    """What a notebook shows of it."""
    return one._repr_html_()  # pyright: ignore[reportPrivateUsage]


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose cells are text; the caption stands above it."""

    def cells(tag: str, row: Sequence[object]) -> str:
        style = ' style="text-align:left"'
        return "<tr>" + "".join(f"<{tag}{style}>{escape(str(cell))}</{tag}>" for cell in row) + "</tr>"

    body = "".join(cells("td", row) for row in rows)
    return f"<p>{escape(caption)}</p><table><thead>{cells('th', heads)}</thead><tbody>{body}</tbody></table>"
