"""Printable text: names from a trace may contain anything, and none may control a terminal, a CI log or a page.

Use `printable` for text of any kind, `for_log` for lines that a CI system may read, `csv_cell` for spreadsheets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_SHOWN = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"},
    127: 0x2421,
    **dict.fromkeys(range(128, 160), 0xFFFD),
    **dict.fromkeys(map(ord, _BIDI), 0xFFFD),
    **dict.fromkeys(range(0xD800, 0xE000), 0xFFFD),
    **dict.fromkeys((0xFFFE, 0xFFFF), 0xFFFD),
}
"""Control characters become pictures; C1 controls, direction marks, surrogates and invalid XML become U+FFFD."""
_COMMAND = re.compile(r"^(\s*):(?=:[A-Za-z-]+(?:\s[^\n]*)?::)", re.MULTILINE)
"""Commands of GitHub at the start of a line: `::error::text`."""
_OLD_COMMAND = re.compile(r"#(?=#(?:vso)?\[)", re.IGNORECASE)
"""Commands of GitHub and Azure anywhere in a line: `##[group]`, `##vso[task.setvariable]`."""

FORMULA = r"^[=+\-@\t\r]"
"""Start of a text that a spreadsheet interprets as a formula."""
SIGNED = r"^[+-](?:[\d.]+([eE][+-]?\d+)?|\d[\d:. a-z]*( -\d[\d:. a-z]*)*|inf(inity)?)$"
"""Texts with such a start that are not formulas: numbers, time spans (`-3 months 01:00:00`), infinity."""


def printable(text: str) -> str:
    """Replace control characters by visible ones; tabs and line ends stay."""
    return text.translate(_SHOWN)


def readable(name: str) -> str:
    """Return a file name as printable text: bytes that are not UTF-8 become U+FFFD."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def one_line(text: str) -> str:
    """Replace line ends too, for a name inside a line."""
    return printable(text).replace("\n", "␊").replace("\t", " ")


def shortened(text: str, most: int, mark: str = "...") -> str:
    """Cut a text to this number of characters, including the mark at the end."""
    return text if len(text) <= most else text[: most - len(mark)] + mark


def first_few(names: Sequence[object], most: int, mark: str = " ...") -> str:
    """List the first few names; a mark shows that there are more."""
    return ", ".join(map(str, names[:most])) + (mark if len(names) > most else "")


def first_and_more(names: Sequence[object], most: int) -> str:
    """List the first few names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {rest} more" if rest > 0 else "")


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: 1 rank, 2 ranks, 12,345 rows."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def spans(numbers: Iterable[int]) -> str:
    """Format numbers as spans: 0, 1, 2, 3, 7 as "0-3, 7"."""
    first_and_last: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if first_and_last and number == first_and_last[-1][1] + 1:
            first_and_last[-1] = (first_and_last[-1][0], number)
        else:
            first_and_last.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in first_and_last)


def numbers_of_spans(text: str) -> set[int]:
    """Return the numbers of a text made by `spans`; parts that are not numbers are ignored."""
    numbers: set[int] = set()
    for part in text.split(", "):
        first, _, last = part.partition("-")
        if first.isdigit():
            numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def csv_cell(text: str) -> str:
    """Quote text that a spreadsheet would execute as a formula; numbers stay."""
    shown = printable(text)
    return f"'{shown}" if re.match(FORMULA, shown) and not re.match(SIGNED, shown) else shown


def for_log(text: str) -> str:
    """Replace the first letter of commands to a CI system by a full-width one that looks alike.

    A zero-width character in between would not work: .NET, which both systems use, may ignore it in comparisons.
    """
    return _OLD_COMMAND.sub("\uff03", _COMMAND.sub("\\1\uff1a", text))
