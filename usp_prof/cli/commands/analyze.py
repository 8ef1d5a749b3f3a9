"""Show where the time of a step goes, stragglers and findings."""

from __future__ import annotations

import argparse
import math
import os
import platform
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from usp_prof import conventions
from usp_prof.analyses import NAMES
from usp_prof.cli.follow import PATIENCE_SECONDS, follow
from usp_prof.cli.opening import (
    SAMPLINGS,
    executor_option,
    format_option,
    is_sampling,
    model_of,
    model_options,
    note,
    number_option,
    open_from,
    output,
    parse_rank_numbers,
    parse_steps,
    read_snapshots,
    write_out,
)
from usp_prof.findings.registry import third_party_rules
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.files import write
from usp_prof.model.finding import NOTHING_FOUND
from usp_prof.model.hardware import check_device
from usp_prof.model.printable import spans
from usp_prof.model.selection import Assumptions, Selection
from usp_prof.report import stored_document
from usp_prof.report.build import analyze, build
from usp_prof.report.document import Document
from usp_prof.report.sections import SECTIONS
from usp_prof.report.trackers import TRACKERS, log
from usp_prof.run import Run
from usp_prof.tables.table_set import FEW_RANKS

if TYPE_CHECKING:
    Group = argparse._ArgumentGroup  # noqa: SLF001 - it has no public name

EXAMPLES = """\
  usp-prof analyze traces/run-8r
  usp-prof analyze traces/run-8r --section kernels --section host
  usp-prof analyze traces/run-8r --steps 3:7 --ranks 0,4-7
  usp-prof analyze traces/run-1024r --ranks outliers
  usp-prof analyze traces/run-8r --model config.json --sequence 4096 \\
    --convention causal
  usp-prof analyze traces/run-8r --format html -o report.html
  usp-prof analyze traces/run-8r --memory-snapshot 0=snapshot.pickle \\
    --section memory
  usp-prof analyze traces --run all --format json -o reports.json
  usp-prof analyze traces/run-8r --log wandb
  usp-prof analyze --follow traces/run-8r
"""

FORMATS = ("terminal", "json", "markdown", "html", "openmetrics")
ALL = "all"
TERMINAL_SECTIONS = tuple(name for name in SECTIONS if name != "timeline")
"""The terminal draws no timeline; HTML has an interactive one."""
_PIPED_WIDTH = 80


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    _what_to_read(parser)
    _missing_from_the_traces(parser.add_argument_group("missing from the traces"))
    _how_to_write(parser.add_argument_group("report"))


def _what_to_read(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="trace file, folder of a run, or quoted glob")
    parser.add_argument(
        "--run", metavar="NAME", help=f"run to read if PATH has several (default: the newest), or {ALL}"
    )
    parser.add_argument(
        "--ranks",
        metavar="LIST",
        help=f"show only these ranks, such as 0-3,7 (all are read for comparison); or read only {SAMPLINGS}",
    )
    parser.add_argument("--steps", metavar="A:B", default="", help="only these steps, such as 3:7 (inclusive)")
    parser.add_argument("--only", metavar="NAMES", default="", help=f"only these analyses: {', '.join(NAMES)}")
    executor_option(parser)
    parser.add_argument(
        "--follow",
        action="store_true",
        help="update the report when ranks or profiler windows arrive, until the job ends or Ctrl-C",
    )
    parser.add_argument(
        "--patience",
        metavar="SECONDS",
        type=float,
        default=PATIENCE_SECONDS,
        help="with --follow: after this long without a change, a job with all its ranks counts as ended and a "
        f"truncated file as damaged (default: {PATIENCE_SECONDS:g})",
    )


def _missing_from_the_traces(group: Group) -> None:
    model_options(group)
    number_option(group, "--tokens-per-step", "tokens per step over all ranks")
    group.add_argument("--device", metavar="NAME", default="", help="device whose peaks apply, such as H100-SXM")
    group.add_argument(
        "--convention",
        choices=conventions.CONVENTIONS,
        default=conventions.DEFAULT,
        help=f"convention for model FLOPs (default: {conventions.DEFAULT})",
    )
    group.add_argument(
        "--memory-snapshot",
        metavar="[RANK=]FILE",
        action="append",
        default=[],
        help="file written by torch.cuda.memory._dump_snapshot, with its rank if the name has none; repeatable",
    )


def _how_to_write(out: Group) -> None:
    format_option(out, FORMATS)
    out.add_argument("-o", "--output", metavar="FILE", help="output file (default: standard output)")
    out.add_argument(
        "--section",
        metavar="NAME",
        action="append",
        default=[],
        choices=[ALL, *TERMINAL_SECTIONS],
        help=f"sections to print on the terminal: {ALL}, {', '.join(TERMINAL_SECTIONS)}; repeatable",
    )
    out.add_argument(
        "--log", choices=TRACKERS, action="append", default=[], help="experiment tracker to log metrics to; repeatable"
    )


def run(args: argparse.Namespace) -> int:
    """Open the runs, analyze them, and write the report."""
    only = _names(args.only)
    shown = parse_rank_numbers(args.ranks) if args.ranks and not is_sampling(args.ranks) else None
    selection = Selection(shown, *parse_steps(args.steps))
    assumptions = _assumptions(args)
    if args.format == "terminal" and args.output is not None:
        raise UsageError("-o needs a file format", hint="add --format html, markdown, json or openmetrics")
    unseen = _unseen(args.format, args.section)
    if args.follow:
        _check_follow(args)
        return follow(args, lambda opened: _redraw(_document(opened, selection, only, assumptions, unseen), args))
    documents, timelines = [], []
    for number, opened in enumerate(_runs(args)):
        documents.append(_cached_document(opened, selection, only, assumptions, unseen))
        if args.format == "html" and not only:
            from usp_prof.timeline.page import embedded  # noqa: PLC0415 - needed only for HTML

            timelines.append(embedded(opened.tables, selection, number, documents[-1].verdict.straggler))
    _write(documents, args, timelines)
    for tracker in args.log:
        for document in documents:
            note(args, f"logged {log(document, tracker)} metrics of {document.run.name} to {tracker}")
    return 0


def _check_follow(args: argparse.Namespace) -> None:
    if args.format != "terminal":
        raise UsageError("--follow writes to the terminal only", hint=f"leave out --format {args.format}")
    if args.ranks and is_sampling(args.ranks):
        raise UsageError("--follow reads all ranks as they arrive", hint=f"leave out --ranks {args.ranks}")
    if args.run == ALL:
        raise UsageError("--follow shows one run", hint="leave out --run: it shows the newest run")
    if not 0 < args.patience < math.inf:
        raise UsageError(f"--patience {args.patience:g} is not a duration", hint="give seconds, such as --patience 30")


def _redraw(document: Document, args: argparse.Namespace) -> None:
    screen = output(args)
    screen.clear()  # on a terminal only: a pipe gets one report after the other
    _print([document], args)


def _runs(args: argparse.Namespace) -> Iterator[Run]:
    """Yield the requested run, or all runs of the path one after the other."""
    if args.run != ALL:
        yield open_from(_for_run(args, args.run))
        return
    first = open_from(_for_run(args, None))
    yield first
    for name in first.others:
        yield open_from(_for_run(args, name))


def _for_run(args: argparse.Namespace, name: str | None) -> argparse.Namespace:
    """Return the options for one run with all its ranks, unless a sample was requested: waits need all ranks."""
    sample = args.ranks if args.ranks and is_sampling(args.ranks) else None
    return argparse.Namespace(**{**vars(args), "run": name, "ranks": sample})


def _unseen(form: str, wanted: Sequence[str]) -> frozenset[str]:
    """Return the sections that the output does not show: all for JSON, some for the terminal and for HTML."""
    every = frozenset(SECTIONS)
    if form in ("json", "openmetrics"):
        return every
    if form == "terminal":
        return every - set(wanted) if wanted and ALL not in wanted else frozenset({"timeline"})
    if form == "html":  # which has an interactive timeline instead
        return frozenset({"timeline"})
    return frozenset()


def _cached_document(
    opened: Run, selection: Selection, only: Sequence[str], assumptions: Assumptions, unseen: frozenset[str]
) -> Document:
    """Return the cached report of a run with many ranks, if nothing that it depends on has changed.

    Only reports without the timeline, with the package's own rules, and from traces alone are cached.
    """
    is_cacheable = "timeline" in unseen and not assumptions.snapshots and not third_party_rules()
    if len(opened.ranks) <= FEW_RANKS or not is_cacheable:
        return _document(opened, selection, only, assumptions, unseen)
    made_by = (platform.python_version(), np.__version__)
    options = (selection, tuple(only), assumptions, sorted(unseen))
    form = stored_document.form(made_by, opened.name, opened.others, opened.health_of_files, options)
    return stored_document.stored_or_built(
        opened, form, lambda: _document(opened, selection, only, assumptions, unseen)
    )


def _document(
    opened: Run, selection: Selection, only: Sequence[str], assumptions: Assumptions, unseen: frozenset[str]
) -> Document:
    opened.tables.refuse_if_absent(selection, opened.name)
    absent = sorted({snapshot.rank for snapshot in assumptions.snapshots if snapshot.rank >= 0} - set(opened.ranks))
    if absent:
        raise UsageError(
            f"a memory snapshot belongs to rank {spans(absent)}, which is not in run {opened.name}",
            hint=f"it has {spans(opened.ranks)}; name the rank: --memory-snapshot RANK=FILE",
        )
    tables = opened.tables.assuming(assumptions)
    results = analyze(tables, selection, only)
    return build(
        tables,
        results,
        name=opened.name,
        selection=selection,
        other_runs=opened.others,
        search_result=NOTHING_FOUND if only else None,
        without=unseen,
    )


def _assumptions(args: argparse.Namespace) -> Assumptions:
    snapshots = tuple(snapshot for given in args.memory_snapshot for snapshot in read_snapshots(given))
    if args.tokens_per_step < 0:
        raise UsageError(f"--tokens-per-step {args.tokens_per_step} is below 0", hint="the global batch, in tokens")
    device = check_device(args.device)
    return Assumptions(model_of(args), device, args.convention, args.tokens_per_step, snapshots=snapshots)


def _write(documents: Sequence[Document], args: argparse.Namespace, timelines: Sequence[str] = ()) -> None:
    if args.format == "terminal":
        _print(documents, args)
        return
    text = _text(documents, args.format, timelines)
    if args.output is None:
        write_out(text)
        return
    write(args.output, text, "choose a file in an existing folder")
    note(args, f"wrote {args.output}")


def _print(documents: Sequence[Document], args: argparse.Namespace) -> None:
    from usp_prof.report.writers import terminal  # noqa: PLC0415 - rich is loaded only for printing

    screen = output(args)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen.width = _PIPED_WIDTH
    for place, document in enumerate(documents):
        if place:
            screen.print()
        terminal.write(document, screen, args.section)


def _text(documents: Sequence[Document], form: str, timelines: Sequence[str]) -> str:
    from usp_prof.report.writers import json_text, markdown, openmetrics, webpage  # noqa: PLC0415 - only the requested writer

    if form == "html":
        from usp_prof.timeline.page import assets  # noqa: PLC0415 - needed only for HTML

        return webpage.write(documents, timelines, assets() if timelines else "")
    if form == "openmetrics":
        return openmetrics.write(documents)
    if form == "markdown":
        return "\n".join(markdown.write(document) for document in documents)
    return json_text.write(documents[0]) if len(documents) == 1 else json_text.write_all(documents)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in NAMES:
            raise unknown_name("analysis", name, NAMES)
    return names
