"""Wrapping: text as wide as the screen, and commands that are typed over several lines."""

from __future__ import annotations

import re
import textwrap

_LEAST_WIDTH = 40
"""Narrower screens wrap lines themselves."""
_WORD = r"(?:'[^']*'|\"[^\"]*\"|\S)+"
_OPTION = re.compile(rf"--?\w\S* (?!-){_WORD}|{_WORD}")
"""An option with its value, or a word; quoted text is not split."""
_GOES_ON = " \\"
_ITEM = "- "
"""Start of a list item."""


def wrapped(text: str, width: int, hanging: int = 0) -> str:
    """Break long lines; continuation lines keep the indent plus `hanging` blanks."""
    return "".join(f"{line}\n" for long_line in text.splitlines() for line in _lines(long_line, width, hanging))


def wrapped_page(text: str, width: int) -> str:
    """Refill paragraphs and list items of a page that is too wide; consecutive lines of one indent are a paragraph."""
    if all(len(line) <= width for line in text.splitlines()):
        return text
    paragraphs: list[str] = []
    for line in text.splitlines():
        before = paragraphs[-1] if paragraphs else ""
        is_continued = line.strip() and before.strip() and not line.lstrip().startswith(_ITEM)
        if is_continued and _indent(line) == _indent(before) + _hanging(before):
            paragraphs[-1] = f"{before} {line.strip()}"
        else:
            paragraphs.append(line)
    return "".join(wrapped(line, width, _hanging(line)) if line else "\n" for line in paragraphs).rstrip("\n")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _hanging(line: str) -> int:
    return len(_ITEM) if line.lstrip().startswith(_ITEM) else 0


def wrapped_command(command: str, width: int) -> str:
    r"""Break a command between words, with a backslash at each line end: `usp-prof plan \`."""
    words = _OPTION.findall(command)
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) + len(_GOES_ON) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return f"{_GOES_ON}\n".join(lines)


def _lines(line: str, width: int, hanging: int) -> list[str]:
    if len(line) <= max(width, _LEAST_WIDTH):
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.strip(),
        max(width, _LEAST_WIDTH),
        initial_indent=indent,
        subsequent_indent=indent + " " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
