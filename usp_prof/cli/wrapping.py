"""Wrapping: text as wide as the screen, and commands that are typed over several lines."""

from __future__ import annotations

import re
import textwrap

_LEAST_WIDTH = 40
"""Narrower screens are left to wrap by themselves."""
_WORD = r"(?:'[^']*'|\"[^\"]*\"|\S)+"
_OPTION = re.compile(rf"--?\w\S* (?!-){_WORD}|{_WORD}")
"""An option with its value, or a word; quoted ones stay whole."""
_GOES_ON = " \\"


def wrapped(text: str, width: int, hanging: int = 0) -> str:
    """Break each line that is too long; what follows keeps the line's indent and `hanging` blanks more."""
    return "".join(f"{line}\n" for long_line in text.splitlines() for line in _lines(long_line, width, hanging))


def wrapped_page(text: str, width: int) -> str:
    """Fill paragraphs anew where the text is too wide: lines that follow each other with one indent are one."""
    if all(len(line) <= width for line in text.splitlines()):
        return text
    paragraphs: list[str] = []
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        before = paragraphs[-1] if paragraphs else ""
        goes_on = bool(line.strip() and before.strip()) and indent == len(before) - len(before.lstrip())
        if goes_on:
            paragraphs[-1] = f"{before} {line.strip()}"
        else:
            paragraphs.append(line)
    return wrapped("\n".join(paragraphs), width).rstrip("\n")


def wrapped_command(command: str, width: int) -> str:
    r"""Break a command behind words, with the backslash that a shell needs to read on: `usp-prof plan \` and so on."""
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
