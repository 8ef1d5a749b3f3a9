"""Shared parts of commands: the console, options that choose a run, opening it with progress, memory snapshots."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof import limits
from usp_prof.cli.app import OpenUntilTheEnd
from usp_prof.contract import ModelEntry
from usp_prof.inputs.discovery import Discovery, discover
from usp_prof.inputs.memory_snapshot import read_memory_snapshot
from usp_prof.model.errors import UsageError
from usp_prof.model.memory_snapshot import MemorySnapshot
from usp_prof.model.printable import for_log, printable
from usp_prof.report.writers.safe_console import SafeConsole
from usp_prof.run import Run, open_run

if TYPE_CHECKING:
    _OptionHolder = argparse._ActionsContainer  # noqa: SLF001 - a parser or a group of options; it has no public name


_CLUSTERS = Path(__file__).resolve().parents[1] / "extras" / "cluster"
_PIPED_WIDTH = 120
_WIDEST = 10_000


def output(args: argparse.Namespace) -> SafeConsole:
    """Return the console for results: as wide as the terminal, without colors if piped or disabled."""
    return _console(args, stderr=False)


def notes(args: argparse.Namespace) -> SafeConsole:
    """Return the console for notes on standard error."""
    return _console(args, stderr=True)


def write_out(text: str) -> None:
    """Write a text result, with unprintable characters escaped: names from traces may contain anything."""
    sys.stdout.write(for_log(printable(text)))


def write_drawn(text: str) -> None:
    """Write text from a safe console, in which names are already escaped and colors are control sequences."""
    sys.stdout.write(text)


def note(args: argparse.Namespace, text: str) -> None:
    """Print a note on standard error, unless `--quiet`."""
    if not args.quiet:
        notes(args).print(text, markup=False, soft_wrap=True)


@contextmanager
def reading_progress(args: argparse.Namespace) -> Iterator[Callable[[int, int, str], None] | None]:
    """Show the progress of reading traces: a bar on a terminal, lines with `--verbose`, otherwise nothing."""
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
        bar.start()  # a run from the cache shows no bar

    try:
        yield show
    finally:
        bar.stop()


@contextmanager
def planning_status(args: argparse.Namespace) -> Iterator[None]:
    """Show on a terminal that the planner runs."""
    console = notes(args)
    if args.quiet or not console.is_terminal:
        yield
        return
    with console.status("planning"):
        yield


def _console(args: argparse.Namespace, *, stderr: bool) -> SafeConsole:
    stream = sys.stderr if stderr else sys.stdout
    plain = args.no_color or bool(os.environ.get("NO_COLOR"))
    terminal = stream.isatty()
    width = None if terminal or os.environ.get("COLUMNS") else _PIPED_WIDTH
    console = SafeConsole(file=stream, no_color=plain or not terminal, highlight=False, width=width, emoji=False)
    # COLUMNS may have any value, and each line is padded to it. An explicit width stays when the terminal is resized.
    if console.width > _WIDEST:  # noqa: PLR1730
        console.width = _WIDEST
    return console


# Options that choose a run, and opening it with progress.


def whole_number(within: limits.Range = limits.AMOUNT) -> Callable[[str], int]:
    """Return the parser of an option whose value is a whole number in a range."""

    def parse(text: str) -> int:
        number = limits.parse_integer(text, within)
        if number is None:
            raise argparse.ArgumentTypeError(f"{text[:24]!r} is not a whole number from {within}")
        return number

    return parse


def number_option(holder: _OptionHolder, name: str, text: str, default: int = 0) -> None:
    """Declare an option whose value is a whole number; by default 0, which means that it was not given."""
    holder.add_argument(name, metavar="N", type=whole_number(), default=default, help=text)


_SPAN = re.compile(r"(\d+)(?:-(\d+))?\Z")
_MOST = 1_000_000
SAMPLINGS = "outliers, one-per-stage, sample:N (see docs/scale.md)"
"""Choices of ranks by their properties, for help texts."""


def completes(argument: argparse.Action, names: Callable[[], Iterable[str]]) -> None:
    """Set the values that shell completion offers; argcomplete reads them from this attribute."""
    argument.completer = lambda **_: tuple(names())  # type: ignore[attr-defined]


def run_options(parser: argparse.ArgumentParser) -> None:
    """Declare the path of a run and the options that choose among its runs and ranks."""
    parser.add_argument("path", metavar="PATH", help="trace file, folder of a run, or quoted glob")
    choice_options(parser)


def choice_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that choose among several runs and ranks."""
    parser.add_argument("--run", metavar="NAME", help="run to read if PATH has several (default: the newest)")
    parser.add_argument("--ranks", metavar="LIST", help=f"read only these ranks, such as 0-3,7; or {SAMPLINGS}")
    executor_option(parser)


def refuse_choice_without_path(args: argparse.Namespace) -> None:
    """Refuse options that choose among runs and ranks if no path was given."""
    for name in ("run", "ranks", "executor"):
        if getattr(args, name) and not args.path:
            raise UsageError(f"--{name} chooses from a recorded run, and no PATH was given", hint="give PATH")


def executor_option(parser: argparse.ArgumentParser) -> None:
    """Declare the option for the executor."""
    parser.add_argument(
        "--executor",
        metavar="WHERE",
        help="executor that reads and analyzes ranks: dask:tcp://HOST:PORT (default: local processes)",
    )


def format_option(parser: _OptionHolder, formats: Sequence[str] = ("terminal", "json")) -> None:
    """Declare the option for the output format; the first is the default."""
    parser.add_argument("--format", choices=formats, default=formats[0], help=f"output format (default: {formats[0]})")


def steps_option(parser: argparse.ArgumentParser) -> None:
    """Declare the option that selects steps to write."""
    parser.add_argument("--steps", metavar="A:B", default="", help="only these steps, such as 3:5, both included")


def model_options(group: _OptionHolder) -> None:
    """Declare the model that traces do not describe."""
    group.add_argument(
        "--model", metavar="FILE", type=Path, help="model description: our JSON or a Hugging Face config.json"
    )
    number_option(group, "--sequence", "sequence length, if the description has none")


def model_of(args: argparse.Namespace) -> ModelEntry | None:
    """Read the model that the options name."""
    from usp_prof.model.flops import load  # noqa: PLC0415 - needed only with a model

    return load(args.model, args.sequence) if args.model else None


def open_from(args: argparse.Namespace) -> Run:
    """Open the run that the options name, and show progress."""
    with reading_progress(args) as progress:
        return open_run(
            args.path if isinstance(args.path, Discovery) else discover(args.path),
            run=args.run,
            ranks=parse_ranks(args.ranks) if args.ranks else None,
            cache_dir=args.cache_dir,
            progress=progress,
            executor=executor_of(args),
        )


def executor_of(args: argparse.Namespace) -> Executor | None:
    """Return the executor that the options name; None means processes of this machine."""
    if args.executor is None:
        return None
    resources: OpenUntilTheEnd = args.open_until_the_end
    if resources.executor is None:
        resources.executor = resources.enter_context(cluster_executor(args.executor, lambda text: note(args, text)))
    return resources.executor


def cluster_executor(name: str, say: Callable[[str], None] = lambda _: None) -> AbstractContextManager[Executor]:
    """Return the executor of a cluster by its name on the command line: `KIND:ADDRESS`.

    `usp_prof/extras/cluster` has a file for each kind. `say` receives messages for the user.
    """
    kind, _, address = name.partition(":")
    if not kind.isidentifier() or not (_CLUSTERS / f"{kind}.py").is_file():
        raise UsageError(f"no executor is named {name!r}", hint="--executor dask:tcp://HOST:8786")
    executor: AbstractContextManager[Executor]
    executor = import_module(f"usp_prof.extras.cluster.{kind}").connect(address, say)
    return executor


def parse_ranks(text: str) -> tuple[int, ...] | str:
    """Parse `--ranks`: a list of numbers, or the name of a choice, which is checked when the run is opened."""
    return text if is_sampling(text) else parse_rank_numbers(text)


def is_sampling(text: str) -> bool:
    """Return whether `--ranks` names a choice of ranks by their properties."""
    return text[:1].isalpha()


def parse_rank_numbers(text: str) -> tuple[int, ...]:
    """Parse `--ranks`: numbers and ranges, such as 0-3,7."""
    out: set[int] = set()
    for part in text.split(","):
        match = _SPAN.match(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first > _MOST:
            raise UsageError(f"--ranks {text!r} is not a list of numbers", hint="write it like --ranks 0-3,7")
        out.update(range(first, last + 1))
    return tuple(sorted(out))


_STEPS = re.compile(r"(?P<first>\d*)(?P<colon>[:-]?)(?P<last>\d*)\Z")


def parse_steps(text: str) -> tuple[int | None, int | None]:
    """Parse `--steps`: A:B, A:, :B or A; A-B, the syntax of ranks, means A:B."""
    if not text:
        return None, None
    match = _STEPS.match(text)
    if match is None or text in {":", "-"}:
        raise UsageError(f"--steps {text!r} is not a range of steps", hint="write it like --steps 3:7, 3:, :7 or 3")
    first = int(match["first"]) if match["first"] else None
    if not match["colon"]:
        return first, first
    last = int(match["last"]) if match["last"] else None
    if first is not None and last is not None and last < first:
        raise UsageError(f"--steps {text!r} ends before it begins", hint=f"write --steps {last}:{first}")
    return first, last


# Memory snapshots: the rank of each, from its prefix or from its file name.

_GIVEN = re.compile(r"(?P<rank>\d+)=(?P<path>.+)", re.DOTALL)
_NAMED = re.compile(r"rank[-_.]?(?P<rank>\d+)", re.IGNORECASE)


def read_snapshots(given: str) -> tuple[MemorySnapshot, ...]:
    """Read the devices of one snapshot, given as FILE or RANK=FILE."""
    match = _GIVEN.match(given)
    path = Path(match["path"] if match else given)
    rank_match = match or _NAMED.search(path.name)
    rank = int(rank_match["rank"]) if rank_match else -1
    return tuple(replace(snapshot, rank=rank, name=path.name) for snapshot in read_memory_snapshot(path))
