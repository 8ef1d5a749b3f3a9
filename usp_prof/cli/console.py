"""Console: results on standard output, everything else on standard error, plain when piped."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from usp_prof.model.printable import for_log, printable
from usp_prof.report.writers.safe_console import SafeConsole

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

_PIPED_WIDTH = 120


def output(args: argparse.Namespace) -> SafeConsole:
    """Give the console for results: as wide as the terminal, without colours when piped or not wanted."""
    return _console(args, stderr=False)


def notes(args: argparse.Namespace) -> SafeConsole:
    """Give the console for what is said beside the results."""
    return _console(args, stderr=True)


def write_out(text: str) -> None:
    """Write a result that is text: what it names may hold anything."""
    sys.stdout.write(for_log(printable(text)))


def note(args: argparse.Namespace, text: str) -> None:
    """Say something beside the result, unless `--quiet`."""
    if not args.quiet:
        notes(args).print(text, markup=False, soft_wrap=True)


@contextmanager
def reading_progress(args: argparse.Namespace) -> Iterator[Callable[[int, int, str], None] | None]:
    """Show how far the reading of traces is: a bar on a terminal, lines with `--verbose`, else nothing."""
    console = notes(args)
    if args.quiet or not (console.is_terminal or args.verbose):
        yield None
        return
    if not console.is_terminal:
        yield lambda done, total, name: console.print(f"{done}/{total} bytes: {name}", markup=False)
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (
        TextColumn("reading"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("", total=None)

    def show(done: int, total: int, name: str) -> None:
        bar.update(task, completed=done, total=total, description=name)
        bar.start()  # a run that comes from the cache shows no bar

    try:
        yield show
    finally:
        bar.stop()


@contextmanager
def progress_of(args: argparse.Namespace, what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show how many of a known number of things are done: a bar on a terminal, else nothing."""
    console = notes(args)
    if args.quiet or not console.is_terminal:
        yield None
        return
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _console(args: argparse.Namespace, *, stderr: bool) -> SafeConsole:
    stream = sys.stderr if stderr else sys.stdout
    plain = args.no_color or bool(os.environ.get("NO_COLOR"))
    terminal = stream.isatty()
    width = None if terminal or os.environ.get("COLUMNS") else _PIPED_WIDTH
    return SafeConsole(file=stream, no_color=plain or not terminal, highlight=False, width=width, emoji=False)
