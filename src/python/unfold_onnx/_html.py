"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Protocol


class Shown(Protocol):
    """An object that a notebook shows as HTML."""

    def _repr_html_(self) -> str: ...


def shown(one: Shown) -> str:
    """The HTML of an object."""
    return one._repr_html_()  # pyright: ignore[reportPrivateUsage]


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of text cells, with a caption above it."""

    def cells(tag: str, row: Sequence[object]) -> str:
        style = ' style="text-align:left"'
        return "<tr>" + "".join(f"<{tag}{style}>{escape(str(cell))}</{tag}>" for cell in row) + "</tr>"

    body = "".join(cells("td", row) for row in rows)
    return f"<p>{escape(caption)}</p><table><thead>{cells('th', heads)}</thead><tbody>{body}</tbody></table>"
