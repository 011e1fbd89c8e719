"""Formats text for people."""

from __future__ import annotations

import math
import re

_ACTS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def plain(text: str) -> str:
    """Escapes characters that would act on a terminal, like the command, because names come from models."""
    return _ACTS.sub(lambda found: _SHORT.get(found[0], f"\\u{{{ord(found[0]):x}}}"), text)


def counted(count: int, what: str) -> str:
    """A count with its noun."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def power(number: float, digits: int = 0) -> str:
    """A number as a power of ten, as the command writes it: ``1e-8``, or ``2.0e-7`` with one more digit."""
    if not math.isfinite(number):
        return str(number)
    digit, _, exponent = f"{number:.{digits}e}".partition("e")
    return f"{digit}e{int(exponent)}"
