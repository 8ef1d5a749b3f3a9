"""Markdown writer for pull requests: the summary is visible, the details are folded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import singledispatch
from types import MappingProxyType

from usp_prof.model.finding import Finding
from usp_prof.model.printable import counted, printable
from usp_prof.report import document as doc
from usp_prof.report.document import Block, Document, Section
from usp_prof.report.format import cells, fills, quantity, share
from usp_prof.report.words import REST, health_lines, left_out, lines_of_findings, run_lines

NO_PICTURES: Mapping[str, str] = MappingProxyType({})
_BAR = 60
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


def write(document: Document) -> str:
    """Format the document."""
    title, *lines = run_lines(document.run)
    parts = [f"## usp-prof: {_escape(title)}", "  \n".join(_escape(line) for line in lines)]
    parts += _blocks(document.summary)
    for section in document.sections:
        body = "\n\n".join(_blocks(section))
        if body and not section.needs_drawing:
            parts.append(f"<details>\n<summary>{_escape(section.title)}</summary>\n\n{body}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def sections_text(title: str, sections: Sequence[Section], pictures: Mapping[str, str] = NO_PICTURES) -> str:
    """Format an answer that is not a run's report: its title and its sections.

    `pictures` is the file with a section's chart, by section id.
    """
    parts = [f"## {_escape(title)}"]
    for section in sections:
        parts += [f"### {_escape(section.title)}", *_blocks(section)]
        if section.id in pictures:
            parts.append(f"![{_escape(section.title)}]({pictures[section.id]})")
    return "\n\n".join(parts) + "\n"


def _blocks(section: Section) -> list[str]:
    return [text for block in section.blocks if (text := _set(block))]


@singledispatch
def _set(block: Block) -> str:
    raise TypeError(f"no way to write {type(block).__name__}")


@_set.register(doc.KeyFigures)
def _key_figures(block: doc.KeyFigures) -> str:
    rows = [
        f"| {_escape(figure.label)} | **{quantity(figure.value, figure.unit)}** | {_escape(figure.second)} |"
        for figure in block.figures
    ]
    return "\n".join(["| | | |", "|:--|--:|:--|", *rows])


@_set.register(doc.Stack)
def _stack(block: doc.Stack) -> str:
    parts = block.visible_parts
    counts = cells([part.value for part in parts], _BAR)
    marks = fills([part.role for part in parts], ascii_only=False)
    bar = "".join(mark * count for mark, count in zip(marks, counts, strict=True))
    rows = [
        f"| {mark} {_escape(part.label)} | {share(part.value, block.total)} | {quantity(part.value, block.unit)} |"
        for part, mark in zip(parts, marks, strict=True)
    ]
    head = f"**{_escape(block.title)}**: {quantity(block.total, block.unit)}"
    return "\n".join([head, "", f"`{bar}`", "", "| part | share | time |", "|:--|--:|--:|", *rows])


@_set.register(doc.DataTable)
def _data_table(block: doc.DataTable) -> str:
    columns = doc.formatted_columns(block)
    lines = [f"**{_escape(block.title)}**\n"] if block.title else []
    lines.append(_row([_escape(column.head) for column in columns]))
    lines.append(_row(["--:" if column.is_number else ":--" for column in columns]))
    rows = zip(*(column.texts for column in columns), strict=True)
    lines += [_row([_escape(text) for text in row]) for row in rows]
    if block.more:
        lines.append(f"\n{block.more:,} more rows")
    return "\n".join(lines)


@_set.register(doc.Text)
def _text(block: doc.Text) -> str:
    return _escape(block.text)


@_set.register(doc.Findings)
def _findings(block: doc.Findings) -> str:
    last = [left_out(block.more, block.noise), _escape(block.unasked)]
    omitted = "; ".join(note for note in last if note)
    if not (block.causes or block.rest):
        return f"**{block.title or 'Findings'}**: {block.nothing or 'none worth acting on'}" + (
            f"; {omitted}" if omitted else ""
        )
    lines = [f"**{block.title}**", ""] if block.title else []
    causes, rest = lines_of_findings(block)
    lines += [_finding(number, finding, texts) for number, (finding, texts) in enumerate(causes, 1)]
    if rest:
        lines += ["", f"<details><summary>{len(rest)} more: {REST}</summary>", ""]
        lines += [_finding(number, finding, texts) for number, (finding, texts) in enumerate(rest, len(causes) + 1)]
        lines += ["", "</details>"]
    return "\n".join(lines + ([f"\n{omitted}"] if omitted else []))


def _finding(number: int, finding: Finding, lines: list[str]) -> str:
    first, *rest = lines
    return f"{number}. `{finding.code}` {_escape(first)}" + "".join(f"  \n   {_escape(line)}" for line in rest)


@_set.register(doc.Health)
def _health(block: doc.Health) -> str:
    if not block.rows:
        return f"**Health**: {counted(block.more, 'note')}" if block.more else "**Health**: no problems in the traces"
    lines = [f"**{block.title}**", ""] if block.title else []
    lines += [f"- {severity}: {_escape(line)}" for severity, line in health_lines(block.rows)]
    return "\n".join(lines + ([f"- {block.more} more"] if block.more else []))


@_set.register(doc.Chart)
def _chart(block: doc.Chart) -> str:
    """Skip charts."""
    del block
    return ""


def _row(texts: list[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", printable(text).replace("\n", " "))
