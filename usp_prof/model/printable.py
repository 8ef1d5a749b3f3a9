"""Printable text: names from a trace may hold anything, and none of it steers a terminal, a CI log or a page.

One function for each door: `printable` for text of any kind, `for_log` for lines that a CI system may read,
`csv_cell` for spreadsheets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_SHOWN = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"},
    127: 0x2421,
    **dict.fromkeys(range(128, 160), 0xFFFD),
    **dict.fromkeys(map(ord, _BIDI), 0xFFFD),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
    **dict.fromkeys((0xFFFE, 0xFFFF), 0xFFFD),
}
"""Control characters become their pictures; those of the upper half, of direction, lone surrogates and what XML has
not become U+FFFD."""
_COMMAND = re.compile(r"^(\s*):(?=:[A-Za-z-]+(?:\s[^\n]*)?::)", re.MULTILINE)
"""What GitHub takes for an order at the begin of a line: `::error::text`."""
_OLD_COMMAND = re.compile(r"#(?=#(?:vso)?\[)", re.IGNORECASE)
"""What GitHub and Azure take for an order wherever it stands in a line: `##[group]`, `##vso[task.setvariable]`."""

FORMULA = r"^[=+\-@\t\r]"
"""How a text begins that a spreadsheet takes for a formula."""
SIGNED = r"^[+-](?:[\d.]+([eE][+-]?\d+)?|\d[\d:. a-z]*( -\d[\d:. a-z]*)*|inf(inity)?)$"
"""What begins so and is none: a number, a span of time (`-3 months 01:00:00`), infinity."""


def printable(text: str) -> str:
    """Show control characters instead of obeying them; tabs and line ends stay."""
    return text.translate(_SHOWN)


def readable(name: str) -> str:
    """Give a file's name as text that can be written: bytes that are no UTF-8 are shown as U+FFFD."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def one_line(text: str) -> str:
    """Show line ends too: for a name inside a line."""
    return printable(text).replace("\n", "␊").replace("\t", " ")


def shortened(text: str, most: int, mark: str = "...") -> str:
    """Cut a text to so many characters, of which the last are a mark."""
    return text if len(text) <= most else text[: most - len(mark)] + mark


def first_few(names: Sequence[object], most: int, mark: str = " ...") -> str:
    """List the first few names; a mark says that there are more."""
    return ", ".join(map(str, names[:most])) + (mark if len(names) > most else "")


def counted(number: int, noun: str) -> str:
    """Write how many there are of what: 1 rank, 2 ranks, 12,345 rows."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def csv_cell(text: str) -> str:
    """Make text fit for a spreadsheet, which would run it as a formula: a quote stands before; numbers stay."""
    shown = printable(text)
    return f"'{shown}" if re.match(FORMULA, shown) and not re.match(SIGNED, shown) else shown


def for_log(text: str) -> str:
    """Make sure that no line holds an order to a CI system: its first letter becomes the wide one that looks alike.

    A letter of no width in between would not do: .NET, which both systems are written in, may compare without those.
    """
    return _OLD_COMMAND.sub("\uff03", _COMMAND.sub("\\1\uff1a", text))
