"""HTML writer: the document as one file, with charts and a timeline that zoom.

The first screen has the verdict, the findings and the timeline; the sections below are folded, and folded sections are
not printed. The page's own policy forbids requests. BokehJS is included, and runs once the first chart is unfolded.
Light and dark mode follow the system or a button. A chart is stored once: `patch` holds the differences of the dark
theme.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from functools import singledispatch
from html import escape as html_escape
from importlib.resources import files
from itertools import count
from typing import Any

from usp_prof.charts import as_json, height_of
from usp_prof.charts.theme import DARK, LIGHT, PATTERNS
from usp_prof.model.finding import Finding
from usp_prof.model.printable import counted, printable
from usp_prof.report import document as doc
from usp_prof.report.document import Block, Document, Section
from usp_prof.report.format import UNKNOWN, quantity, share
from usp_prof.report.words import REST, health_lines, left_out, lines_of_findings, run_lines

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
_ADDRESS = re.compile(r"https?://[!-~]+")
"""A text that is only an address becomes a link."""
MOST_OPEN = 6
"""Sections of a short document (an answer, an incident) are not folded."""
_SHORT = 24
_LONG = 110
"""Longer names are C++ templates: they get two lines, and a tooltip with the full name."""

Path = list[str | int]


def escape(text: str) -> str:
    """Escape text for the page; control characters become visible."""
    return html_escape(printable(text))


def write(documents: Sequence[Document], timelines: Sequence[str] = (), timeline_assets: str = "") -> str:
    """Format the documents of one or several runs as one page.

    `timelines` has an interactive timeline for each document, as a fragment of HTML; `timeline_assets` are the script
    and style that all of them need.
    """
    title = escape(", ".join(document.run.name for document in documents))
    fragments = [*timelines, *("" for _ in documents)]
    body = "\n".join(_article(document, place, fragments[place]) for place, document in enumerate(documents))
    return (
        '<!DOCTYPE html>\n<html lang="en" data-theme="light">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>usp-prof: {title}</title>\n<style>\n{_asset('page.css')}</style>\n"
        f"</head>\n<body>\n<main>\n{body}\n</main>\n{_library() if 'data-chart' in body else ''}"
        f"<script>\n{_asset('page.js')}</script>\n{timeline_assets}\n</body>\n</html>\n"
    )


def _library() -> str:
    """Return BokehJS packed; the page unpacks it after the first paint."""
    from bokeh.resources import Resources  # noqa: PLC0415 - needed only for charts

    code = "\n".join(Resources(mode="inline", components=["bokeh", "bokeh-api"]).js_raw)
    packed = base64.b64encode(gzip.compress(code.encode(), 9, mtime=0)).decode()
    return f'<script type="text/plain" id="bokeh">{packed}</script>\n'


def patch(light: Any, dark: Any, path: Path | None = None) -> Iterator[tuple[Path, Any]]:  # noqa: ANN401 - JSON
    """Return the places where two drawings of one chart differ, and the second one's values."""
    here = path or []
    if isinstance(light, dict):
        for key in light:
            yield from patch(light[key], dark[key], [*here, key])
    elif isinstance(light, (list, tuple)):
        for place, (light_item, dark_item) in enumerate(zip(light, dark, strict=True)):
            yield from patch(light_item, dark_item, [*here, place])
    elif light != dark:
        yield here, dark


def _article(document: Document, place: int, timeline: str) -> str:
    title, *lines = run_lines(document.run)
    chart_ids = (f"{place}-{number}" for number in count(1))
    shown = [section for section in document.sections if not (timeline and section.id == "timeline")]
    is_open = len(shown) <= MOST_OPEN
    sections = [_section(section, chart_ids, f"{place}-{section.id}", is_open=is_open) for section in shown]
    button = '<button id="theme" type="button" aria-label="change theme">dark</button>' if place == 0 else ""
    fold = '<button id="fold" type="button">open all sections</button>' if place == 0 else ""
    facts = escape(" · ".join(lines))
    sentence = document.verdict.sentence
    verdict = f'<p class="verdict">{escape(sentence)}</p>\n' if sentence else ""
    return (
        f'<article>\n<header><div><h1>{escape(title)}</h1><p class="facts">{facts}</p></div>'
        f'<div class="buttons">{fold}{button}</div></header>\n'
        f"{verdict}{_summary(document.summary, chart_ids)}\n{timeline}\n{''.join(sections)}\n"
        f'<p class="quiet version">usp-prof {escape(document.version)}</p></article>'
    )


def _summary(summary: Section, chart_ids: Iterator[str]) -> str:
    """Format the first screen: figures, then findings next to the tables that they are based on, with their notes."""
    figures: list[str] = []
    findings: list[str] = []
    tables: list[str] = []
    for block in summary.blocks:
        column = findings if isinstance(block, doc.Findings | doc.Health) else tables
        (figures if isinstance(block, doc.KeyFigures | doc.Stack) else column).append(_html(block, chart_ids))
    columns = "".join(f"<div>{''.join(column)}</div>" for column in (findings, tables) if column)
    return f'{"".join(figures)}<div class="columns">{columns}</div>'


def _section(section: Section, chart_ids: Iterator[str], anchor: str, *, is_open: bool) -> str:
    mark = " open" if is_open else ""
    body = "\n".join(_html(block, chart_ids) for block in section.blocks)
    return (
        f'<details class="section" id="{anchor}"{mark}>\n<summary><h2>{escape(section.title)}</h2></summary>\n'
        f"{body}\n</details>\n"
    )


@singledispatch
def _html(block: Block, chart_ids: Iterator[str]) -> str:
    raise TypeError(f"{type(block).__name__} has no HTML form ({chart_ids})")


@_html.register(doc.KeyFigures)
def _key_figures(block: doc.KeyFigures, chart_ids: Iterator[str]) -> str:
    del chart_ids
    cards = []
    for figure in block.figures:
        value = quantity(figure.value, figure.unit)
        state = " unknown" if value == UNKNOWN else ""
        cards.append(
            f'<div class="figure"><div class="label">{escape(figure.label)}</div>'
            f'<div class="value{state}">{escape(value)}</div><div class="second">{escape(figure.second)}</div></div>'
        )
    return f'<div class="figures">{"".join(cards)}</div>'


@_html.register(doc.Stack)
def _stack(block: doc.Stack, chart_ids: Iterator[str]) -> str:
    del chart_ids
    parts = block.visible_parts
    bar = "".join(
        f'<span style="flex:{part.value} 1 0" {_swatch(part.role)} '
        f'title="{escape(part.label)}: {share(part.value, block.total)}"></span>'
        for part in parts
    )
    legend = "".join(
        f"<li><i {_swatch(part.role)}></i>{escape(part.label)} <b>{share(part.value, block.total)}</b> "
        f'<span class="quiet">{quantity(part.value, block.unit)}</span></li>'
        for part in parts
    )
    head = f'<h3>{escape(block.title)} <span class="unit">{quantity(block.total, block.unit)}</span></h3>'
    return f'{head}<div class="stack">{bar}</div><ul class="legend">{legend}</ul>'


@_html.register(doc.DataTable)
def _data_table(block: doc.DataTable, chart_ids: Iterator[str]) -> str:
    del chart_ids
    columns = doc.formatted_columns(block)
    heads = "".join(f"<th{_number_class(column)}>{escape(column.head)}</th>" for column in columns)
    rows = "".join(
        f"<tr>{''.join(_cell(text, column) for text, column in zip(row, columns, strict=True))}</tr>"
        for row in zip(*(column.texts for column in columns), strict=True)
    )
    more = f'<p class="quiet">{block.more:,} more rows</p>' if block.more else ""
    return (
        f'{_title(block.title)}<div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{more}"
    )


def _cell(text: str, column: doc.FormattedColumn) -> str:
    """Format a cell: short names on one line, long ones wrapped, very long ones cut. Sentences are never cut."""
    if column.is_number or len(text) > _SHORT:
        is_cut = len(text) > _LONG and not (column.is_number or column.prose)
        if is_cut:
            return f'<td class="long"><div title="{escape(text)}">{escape(text)}</div></td>'
        return f"<td{_number_class(column)}>{escape(text)}</td>"
    return f'<td class="whole">{escape(text)}</td>'


def _number_class(column: doc.FormattedColumn) -> str:
    return ' class="number"' if column.is_number else ""


@_html.register(doc.Text)
def _text(block: doc.Text, chart_ids: Iterator[str]) -> str:
    del chart_ids
    text = escape(block.text)
    markup = f'<a href="{text}">{text}</a>' if _ADDRESS.fullmatch(block.text) else text
    return f"<p{' class=quiet' if block.quiet else ''}>{markup}</p>"


@_html.register(doc.Findings)
def _findings(block: doc.Findings, chart_ids: Iterator[str]) -> str:
    del chart_ids
    notes = [left_out(block.more, block.noise), block.unasked]
    last = "".join(f'<p class="quiet">{escape(note)}</p>' for note in notes if note)
    if not (block.causes or block.rest):
        return f'{_title(block.title)}<p class="quiet">{escape(block.nothing or "none worth acting on")}</p>{last}'
    shown, rest = ("".join(_finding(finding, lines) for finding, lines in part) for part in lines_of_findings(block))
    if rest:
        start = len(block.causes) + 1
        rest = (
            f"<details><summary>{len(block.rest)} more: {REST}</summary>"
            f'<ol class="findings" start="{start}">{rest}</ol></details>'
        )
    return f'{_title(block.title)}<ol class="findings">{shown}</ol>{rest}{last}'


def _finding(finding: Finding, lines: list[str]) -> str:
    first, *rest = lines
    quiet = "".join(f'<br><span class="quiet">{escape(line)}</span>' for line in rest)
    return f'<li><span class="code {finding.level}">{escape(finding.code)}</span> {escape(first)}{quiet}</li>'


@_html.register(doc.Health)
def _health(block: doc.Health, chart_ids: Iterator[str]) -> str:
    del chart_ids
    if not block.rows:
        note = f"{counted(block.more, 'note')}, no data lost" if block.more else "no problems in the traces"
        return f'{_title(block.title)}<p class="quiet">{note}</p>'
    items = "".join(
        f'<li><span class="{severity}">{severity}</span> {escape(line)}</li>'
        for severity, line in health_lines(block.rows)
    )
    more = f'<p class="quiet">{block.more} more</p>' if block.more else ""
    return f'{_title(block.title)}<ul class="health">{items}</ul>{more}'


@_html.register(doc.Chart)
def _chart(block: doc.Chart, chart_ids: Iterator[str]) -> str:
    number = next(chart_ids)
    light, dark = (as_json(block.data, theme) for theme in (LIGHT, DARK))
    return (
        f'{_title(block.title)}<div class="chart" data-chart="{number}" style="min-height:{height_of(light)}px"></div>'
        f'<script type="application/json" id="chart-{number}">{_json(light)}</script>'
        f'<script type="application/json" id="dark-{number}">{_json(list(patch(light, dark)))}</script>'
    )


def _title(text: str) -> str:
    return f"<h3>{escape(text)}</h3>" if text else ""


def _json(data: Any) -> str:  # noqa: ANN401 - JSON
    """Return JSON that no text in it can terminate: `<` never appears."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _swatch(role: str) -> str:
    light, dark = LIGHT.color(role), DARK.color(role)
    hatch = f' class="hatch-{role.partition(":")[2]}"' if role in PATTERNS else ""
    return f'data-light="{light}" data-dark="{dark}"{hatch}'


def _asset(name: str) -> str:
    return files("usp_prof.report.writers").joinpath(name).read_text(encoding="utf-8")
