"""Terminal writer: the summary on one screen, and the requested sections.

Readable at 80 columns, with and without color, and in plain ASCII; piped output is the same text without colors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from io import StringIO

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text as Line

from usp_prof.charts.theme import DARK
from usp_prof.model.finding import Finding, Level
from usp_prof.model.health import Severity
from usp_prof.model.printable import counted, shortened
from usp_prof.report import document as doc
from usp_prof.report.document import Block, Document, Section
from usp_prof.report.format import MICRO, SOLID, cells, fills, quantity, share
from usp_prof.report.words import health_lines, left_out, lines_of_findings, run_lines
from usp_prof.report.writers.safe_console import print_trimmed, text_console

_INDENT = 2
_ASCII = {ord(MICRO): "u", ord("\u00b1"): "+/-", ord("\u00b7"): "."}
_WIDEST_BAR = 110
_NARROWEST = 20
_MANY_COLORS = ("256", "truecolor")
_STYLES = {
    Severity.INFO: "dim",
    Severity.ERROR: "yellow",
    Severity.DATA_LOSS: "bold red",
    Level.NOTE: "dim",
    Level.WARNING: "yellow",
    Level.CRITICAL: "bold red",
}


def write(document: Document, console: Console, sections: Sequence[str] = ()) -> None:
    """Print the summary, or the named sections (`all` for every one)."""
    title, *lines = run_lines(document.run)
    _put(Line.assemble(("usp-prof ", "dim"), (_plain(title, console), "bold")), console)
    for line in lines:
        _put(Line(_plain(line, console)), console)
    printable = [section for section in document.sections if not section.needs_drawing]
    if not sections:
        _print_blocks(document.summary.blocks, console)
        if printable:
            console.print()
            names = ", ".join(section.id for section in printable)
            _put(Line(f"Details: --section NAME|all; sections: {names}", style="dim"), console)
        return
    for section in printable:
        if "all" in sections or section.id in sections:
            console.print()
            _put(Line.assemble((section.title, "bold"), (f"  --section {section.id}", "dim")), console)
            _print_blocks(section.blocks, console)


def sections_text(title: str, sections: Sequence[Section], *, color: bool, width: int) -> str:
    """Format an answer that is not a run's report: its title and its sections."""
    out = StringIO()
    console = text_console(out, color=color, width=width)
    _put(Line.assemble(("usp-prof ", "dim"), (_plain(title, console), "bold")), console)
    for section in sections:
        console.print()
        _put(Line(_plain(section.title, console), style="bold"), console)
        _print_blocks(section.blocks, console)
    return out.getvalue()


def _print_blocks(blocks: Sequence[Block], console: Console) -> None:
    for block in blocks:
        _print(block, console)


@singledispatch
def _print(block: object, console: Console) -> None:
    raise TypeError(f"no way to print {type(block).__name__} on {console}")


@_print.register(doc.KeyFigures)
def _key_figures(block: doc.KeyFigures, console: Console) -> None:
    console.print()
    grid = Table.grid(padding=(0, 2))
    for _ in range(2):
        grid.add_column(no_wrap=True)
    width = max(len(figure.label) for figure in block.figures)
    for figure in block.figures:
        grid.add_row(
            Line(_plain(figure.label.ljust(width), console), style="bold"),
            Line(_plain(quantity(figure.value, figure.unit), console), style="bold", justify="right"),
            Line(_plain(figure.second, console), style="dim"),
        )
    _put(grid, console)


@_print.register(doc.Stack)
def _stack(block: doc.Stack, console: Console) -> None:
    console.print()
    head = f"  {quantity(block.total, block.unit)}"
    _put(Line.assemble((_plain(block.title, console), "bold"), (_plain(head, console), "dim")), console)
    colored = console.color_system is not None and not console.no_color
    parts = block.visible_parts
    roles = [part.role for part in parts]
    marks = fills(roles, ascii_only=console.options.ascii_only)
    # Sixteen colors cannot distinguish all axes: keep the fills.
    if colored and console.color_system in _MANY_COLORS and not console.options.ascii_only:
        marks = [SOLID] * len(parts)
    styles = [DARK.color(role) if colored else "" for role in roles]
    counts = cells([part.value for part in parts], min(console.width - 2 * _INDENT, _WIDEST_BAR))
    bar = Line(no_wrap=True)
    for mark, style, count in zip(marks, styles, counts, strict=True):
        bar.append(mark * count, style)
    _put(bar, console)
    _put(_bar_legend(block, parts, marks, styles, console), console)


def _bar_legend(
    block: doc.Stack, parts: tuple[doc.StackPart, ...], marks: list[str], styles: list[str], console: Console
) -> RenderableType:
    entries = [
        (
            Line.assemble((mark * 2, style), " ", _plain(part.label, console)),
            Line(share(part.value, block.total), justify="right"),
            Line(_plain(quantity(part.value, block.unit), console), style="dim", justify="right"),
        )
        for part, mark, style in zip(parts, marks, styles, strict=True)
    ]
    columns = 2
    grid = Table.grid(padding=(0, 2))
    for _ in range(4 * columns):
        grid.add_column(no_wrap=True)
    rows = -(-len(entries) // columns)
    for row in range(rows):
        line = [entries[place] for place in range(row, len(entries), rows)]
        grid.add_row(*(cell for entry in line for cell in (*entry, Line(""))))
    return grid


@_print.register(doc.DataTable)
def _data_table(block: doc.DataTable, console: Console) -> None:
    console.print()
    if block.title:
        _put(Line(_plain(block.title, console), style="bold"), console)
    columns = [
        (_plain(column.head, console), [_plain(text, console) for text in column.texts], column.is_number, column.prose)
        for column in doc.formatted_columns(block)
    ]
    n_fitting, width = columns_that_fit([column[:3] for column in columns], console.width - _INDENT)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False, show_edge=False)
    mark = "..." if console.options.ascii_only else "\u2026"  # at the end of a name that is cut
    shown = []
    for head, texts, is_number, prose in columns[:n_fitting]:
        most = max(width, len(head))
        table.add_column(
            Line(head),
            justify="right" if is_number else "left",
            no_wrap=not prose,
            max_width=most if prose else None,
        )
        shown.append(texts if is_number or prose else [shortened(text, most, mark) for text in texts])
    for row in zip(*shown, strict=True):
        table.add_row(*(Line(cell) for cell in row))
    _put(table, console)
    left = [f"{block.more:,} more rows"] if block.more else []
    left += (
        [f"columns not shown: {', '.join(head for head, *_ in columns[n_fitting:])} (widen the terminal)"]
        if n_fitting < len(columns)
        else []
    )
    if left:
        _put(Line(_plain("; ".join(left), console), style="dim"), console)


def columns_that_fit(columns: list[tuple[str, list[str], bool]], width: int) -> tuple[int, int]:
    """Return how many columns fit, and the width left for texts; the first columns matter most.

    A column is its heading, its texts, and whether they are numbers, which are never cut; two blanks separate columns.
    """
    for n_columns in range(len(columns), 0, -1):
        shown = columns[:n_columns]
        wide = [max(map(len, [head, *texts])) for head, texts, _ in shown]
        needed = sum(
            size if numbers else max(len(head), min(size, _NARROWEST))
            for size, (head, _, numbers) in zip(wide, shown, strict=True)
        )
        spare = width - needed - 2 * (n_columns - 1)
        if spare >= 0 or n_columns == 1:
            texts = [
                size for size, (_, _, numbers) in zip(wide, shown, strict=True) if not numbers and size > _NARROWEST
            ]
            return n_columns, _NARROWEST + max(0, spare) // max(1, len(texts))
    return 0, _NARROWEST


@_print.register(doc.Text)
def _text(block: doc.Text, console: Console) -> None:
    if not block.quiet:
        console.print()
    _put(Line(_plain(block.text, console), style="dim" if block.quiet else ""), console)


@_print.register(doc.Findings)
def _findings(block: doc.Findings, console: Console) -> None:
    console.print()
    if block.title:
        _put(Line(block.title, style="bold"), console)
    if not (block.causes or block.rest):
        omitted = left_out(block.more, block.noise)
        text = f"none worth acting on; {omitted} (--section findings)" if omitted else block.nothing or "none"
        _put(Line(text, style="dim"), console)
    causes, rest = lines_of_findings(block)
    for number, (finding, lines) in enumerate((*causes, *rest), 1):
        _finding(number, finding, lines, console)
    if block.causes and (omitted := left_out(block.more, block.noise)):
        _put(Line(f"{omitted} (--section findings)", style="dim"), console)
    if block.unasked:
        _put(Line(f"{block.unasked} (--section health)", style="dim"), console)


def _finding(number: int, finding: Finding, lines: list[str], console: Console) -> None:
    first, *rest = lines
    head = Table.grid(padding=0)  # lines of a long title are indented
    title = Line.assemble((finding.code, _STYLES[finding.level]), ": ", _plain(first, console))
    head.add_row(Line(f"{number}. ", style="dim"), title)
    _put(head, console)
    for line in rest:
        _put(Line(_plain(line, console), style="dim"), console, _INDENT + 3)


@_print.register(doc.Health)
def _health(block: doc.Health, console: Console) -> None:
    console.print()
    head = (f"{block.title}  " if block.title else "", "bold")
    if not block.rows:
        notes = f"{counted(block.more, 'note')}, no data lost (--section health)"
        _put(Line.assemble(head, notes if block.more else "no problems in the traces"), console)
        return
    if block.title:
        _put(Line.assemble(head), console)
    for severity, line in health_lines(block.rows):
        _put(Line.assemble((str(severity), _STYLES[severity]), " ", _plain(line, console)), console)
    if block.more:
        _put(Line(f"{block.more} more (--section health)", style="dim"), console)


@_print.register(doc.Chart)
def _chart(block: doc.Chart, console: Console) -> None:
    """Skip charts: bars and tables show the same."""
    del block, console


def _plain(text: str, console: Console) -> str:
    """Remove control characters (names come from traces), and on an ASCII terminal unsupported characters."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if not console.options.ascii_only:
        return text
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def _put(renderable: RenderableType, console: Console, indent: int = _INDENT) -> None:
    print_trimmed(Padding(renderable, (0, 0, 0, indent), expand=False), console)
