"""Run a grid of configurations and judge the planner on it.

The cells of a sweep are stored in a folder: an interrupted sweep continues where it stopped, and failures keep their
reason.
"""

from __future__ import annotations

import argparse
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

from usp_prof.cli.opening import format_option, note, notes, number_option, output, write_drawn, write_out
from usp_prof.extras.planner.answers import sweep as answer
from usp_prof.extras.planner.answers.sweep_maps import AXES
from usp_prof.extras.planner.calibration import calibrate
from usp_prof.extras.planner.sweep import published, rows, runner
from usp_prof.extras.planner.sweep.cells import MOST_PROCESSES, cells_of_grid, cells_of_list, parse_fixed
from usp_prof.extras.planner.sweep.rows import Outcome, Row
from usp_prof.extras.planner.sweep.runner import Sweep, record_cell
from usp_prof.extras.planner.sweep.score import Score, cell_to_record, predict_rows, reasons_against, score
from usp_prof.model.errors import InputError, UsageError, UspProfError
from usp_prof.model.files import check_name, read_text, write
from usp_prof.report.document import Section
from usp_prof.run import open_run
from usp_prof.whole_files import whole_file

EXAMPLES = """\
  usp-prof sweep sweeps/tiny --processes 4 --grid tp=1,2 pp=1,2 --fixed batch=16
  usp-prof sweep sweeps/tiny             (continues what was stopped, shows all)
  usp-prof sweep sweeps/tiny --list cells.csv --at-once 2 --judge
  usp-prof sweep sweeps/tiny --format html -o sweep.html
  usp-prof sweep --published playbook FILE.csv --only model=8B \\
    --format html -o playbook.html
"""
FORMATS = ("terminal", "html", "csv")
MOST_AT_ONCE = 64


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", help="folder of the results; an existing sweep continues"
    )
    parser.add_argument(
        "--grid", metavar="NAME=A,B", nargs="+", action="extend", default=[],
        help="values of trainer options to combine; processes is one of them",
    )  # fmt: skip
    parser.add_argument(
        "--fixed",
        metavar="NAME=A",
        nargs="+",
        action="extend",
        default=[],
        help="trainer options for all cells, such as model=tiny batch=16 steps=8",
    )
    parser.add_argument("--list", metavar="CSV", help="cells as rows, trainer options as columns")
    number_option(parser, "--processes", "processes per cell, unless the cell sets them (default: 1)", default=1)
    number_option(parser, "--at-once", "number of cells to run in parallel (default: 1)", default=1)
    parser.add_argument(
        "--timeout", metavar="S", type=float, default=600.0, help="time limit per cell in seconds (default: 600)"
    )
    parser.add_argument("--again", action="store_true", help="run failed cells again")
    parser.add_argument("--trainer", metavar="FILE", default="", help="the trainer's script (default: trainer/run.py)")
    parser.add_argument(
        "--judge", action="store_true", help="record one cell, and measure the planner's error on the others"
    )
    parser.add_argument(
        "--published",
        nargs=2,
        metavar=("FORM", "FILE"),
        help="draw a published sweep; FORM: playbook (the Ultra-Scale Playbook)",
    )
    parser.add_argument(
        "--only", metavar="NAME=A,B", nargs="+", action="extend", default=[], help="keep the rows with these values"
    )
    parser.add_argument("--map", metavar="DOWN,ACROSS", default="", help="axes of the maps (default: tp,pp)")
    format_option(parser, FORMATS)
    parser.add_argument("-o", "--output", metavar="FILE", help="output file (default: standard output)")


def run(args: argparse.Namespace) -> int:
    """Run the remaining cells of a sweep and show it; return 1 if no cell succeeded."""
    axes = _axes(args.map)
    if args.published:
        table = published.read(args.published[0], Path(args.published[1]))
        selected_rows = _selected_rows(table.rows, args.only)
        _write(args, table.name, selected_rows, score(selected_rows), table.notes, axes)
        return 0
    if not args.folder:
        raise UsageError("a sweep needs a folder", hint=EXAMPLES.splitlines()[0].strip())
    folder = Path(args.folder)
    check_name(folder, "name another folder")
    sweep, outcomes = _run(args, folder)
    rows_of_cells = rows.rows_of_folder(sweep, outcomes)
    judged: Score | None = None
    if args.judge:
        rows_of_cells, judged = _judge(args, folder, sweep, outcomes, rows_of_cells)
    with whole_file(folder / "table.csv") as file:
        file.write(_csv(rows_of_cells).encode())
    selected_rows = _selected_rows(rows_of_cells, args.only)
    _write(args, folder.name, selected_rows, judged, (f"Cells and table.csv are in {folder}.",), axes)
    return 0 if any(row.is_ok for row in rows_of_cells) else 1


def _run(args: argparse.Namespace, folder: Path) -> tuple[Sweep, list[Outcome]]:
    for option, most in (("at_once", MOST_AT_ONCE), ("processes", MOST_PROCESSES)):
        if not 1 <= getattr(args, option) <= most:
            raise UsageError(
                f"--{option.replace('_', '-')} is 1 to {most}, not {getattr(args, option)}", hint="start with 1"
            )
    if not args.timeout > 0:
        raise UsageError(f"--timeout is a number of seconds, not {args.timeout:g}", hint="--timeout 600")
    cells = cells_of_grid(args.grid, args.processes) if args.grid else []
    if args.list:
        text = read_text(args.list, "list of cells", "a CSV file with a row for each cell")
        cells += cells_of_list(StringIO(text, newline=""), args.processes)
    trainer = args.trainer or runner.trainer_of_clone()
    if not trainer or not Path(trainer).is_file():
        raise InputError("there is no trainer to run", hint="--trainer FILE, such as trainer/run.py of a clone")
    requested = runner.Sweep(trainer, parse_fixed(args.fixed), tuple(cells))
    sweep = runner.open_sweep(folder, requested)
    with _stopped_by_termination():
        outcomes = runner.run(
            folder, sweep, at_once=args.at_once, timeout=args.timeout, again=args.again, progress=_progress_writer(args)
        )
    return sweep, outcomes


@contextmanager
def _stopped_by_termination() -> Iterator[None]:
    """Make SIGTERM stop the trainers of a sweep, like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _progress_writer(args: argparse.Namespace) -> Callable[[int, int, Outcome], None] | None:
    if args.quiet:
        return None

    def show(done: int, total: int, outcome: Outcome) -> None:
        ending = outcome.reason or f"{outcome.tokens_per_second or 0:,.0f} tokens/s"
        state = "" if outcome.tokens_per_second else f"{outcome.status}: "
        notes(args).print(f"{done}/{total} {outcome.name}: {state}{ending}", markup=False, soft_wrap=True)

    return show


def _judge(
    args: argparse.Namespace, folder: Path, sweep: Sweep, outcomes: Sequence[Outcome], table: tuple[Row, ...]
) -> tuple[tuple[Row, ...], Score | None]:
    """Record one cell, calibrate the planner with it, and measure its error on the others."""
    chosen = cell_to_record(table)
    if chosen is None:
        return table, None
    note(args, f"recording {chosen.cell} once more, to calibrate the planner")
    try:
        traces = record_cell(folder, sweep, chosen.cell, args.timeout)
        calibration = calibrate(open_run(str(traces), cache_dir=args.cache_dir).tables)
    except UspProfError as error:
        note(args, f"the planner is not judged: {error.message}")
        return table, None
    reasons = reasons_against(table, outcomes, calibration, chosen.cell)
    predicted_rows = predict_rows(table, reasons, calibration, chosen.cell)
    not_predicted = Counter(reason for row, reason in zip(table, reasons, strict=True) if reason and row.is_ok)
    return predicted_rows, replace(
        score(predicted_rows, calibration.error_fraction),
        recording_slowdown=calibration.measured_step_ns / chosen.step_ns,
        not_predicted=tuple(not_predicted.most_common()),
        learned_from=str(chosen.configuration),
    )


def _selected_rows(table: Sequence[Row], wanted: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows whose columns have the given values."""
    selected_rows = tuple(table)
    for condition in wanted:
        name, _, values = condition.partition("=")
        read = {"model": lambda row: row.model, "nodes": lambda row: row.nodes, "devices": lambda row: row.devices,
                **AXES}.get(name)  # fmt: skip
        if read is None or not values:
            raise UsageError(f"--only {condition!r} selects nothing", hint="write it like --only model=8B nodes=1,2")
        selected_rows = tuple(row for row in selected_rows if str(read(row)) in values.split(","))
    if table and not selected_rows:
        raise UsageError(f"no row has {' '.join(wanted)}", hint="leave out --only to see all rows")
    return selected_rows


def _axes(text: str) -> tuple[str, str] | None:
    if not text:
        return None
    first, _, second = text.partition(",")
    if first not in AXES or second not in AXES or first == second:
        raise UsageError(
            f"--map {text!r} does not name two axes", hint=f"choose two of {', '.join(AXES)}, such as --map tp,pp"
        )
    return first, second


def _write(
    args: argparse.Namespace, title: str, table: Sequence[Row], judged: Score | None, notes_below: Sequence[str],
    axes: tuple[str, str] | None,
) -> None:  # fmt: skip
    if args.format == "csv":
        text = _csv(table)
    else:
        parts = answer.sections(table, judged, notes_below, drawn=args.format == "html", axes=axes)
        text = _page(title, parts) if args.format == "html" else _lines(args, title, parts)
    if args.output is not None:
        write(args.output, text)
        note(args, f"wrote {args.output}")
    elif args.format == "terminal":
        write_drawn(text)
    else:
        write_out(text)


def _page(title: str, parts: Sequence[Section]) -> str:
    from usp_prof.report.writers import webpage  # noqa: PLC0415 - loaded only for HTML

    return webpage.write([answer.document(title, parts)])


def _lines(args: argparse.Namespace, title: str, parts: Sequence[Section]) -> str:
    from usp_prof.report.writers import terminal  # noqa: PLC0415 - rich is loaded only for printing

    screen = output(args)
    colored = screen.is_terminal and not screen.no_color
    return terminal.sections_text(title, parts, color=colored, width=screen.width)


def _csv(table: Sequence[Row]) -> str:
    file = StringIO()
    rows.write_table(file, table)
    return file.getvalue()
