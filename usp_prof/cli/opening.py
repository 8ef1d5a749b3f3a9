"""Options that choose a run, and opening it with progress."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from usp_prof.cli.console import reading_progress
from usp_prof.model.errors import UsageError
from usp_prof.run import open_run
from usp_prof.store.executors import named_executor

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from usp_prof.run import Run

_SPAN = re.compile(r"(\d+)(?:-(\d+))?\Z")
_MOST = 1_000_000


def run_options(parser: argparse.ArgumentParser) -> None:
    """Declare the path of a run and the options that choose among what lies there."""
    parser.add_argument("path", metavar="PATH", help="a trace file, the folder of a run, or a glob in quotes")
    choice_options(parser)


def choice_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options that choose among several runs and ranks."""
    parser.add_argument("--run", metavar="NAME", help="which run, where several lie under PATH (default: the newest)")
    parser.add_argument("--ranks", metavar="LIST", help="read these ranks only, such as 0-3,7")
    executor_option(parser)


def executor_option(parser: argparse.ArgumentParser) -> None:
    """Declare who reads."""
    parser.add_argument(
        "--executor", metavar="WHERE", help="who reads: dask:tcp://HOST:PORT (default: processes of this machine)"
    )


def open_from(args: argparse.Namespace) -> Run:
    """Open the run that the options name, showing progress."""
    with reading_progress(args) as progress, executor_from(args) as executor:
        return open_run(
            args.path,
            run=args.run,
            ranks=parse_numbers(args.ranks, "--ranks") if args.ranks else None,
            cache_dir=args.cache_dir,
            progress=progress,
            executor=executor,
        )


@contextmanager
def executor_from(args: argparse.Namespace) -> Iterator[Executor | None]:
    """Give the executor that the options name; None: processes of this machine."""
    if not args.executor:
        yield None
        return
    with named_executor(args.executor) as executor:
        yield executor


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Read a list of numbers and spans, such as 0-3,7."""
    out: set[int] = set()
    for part in text.split(","):
        match = _SPAN.match(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first > _MOST:
            raise UsageError(f"{option} {text!r} is no list of numbers", hint=f"write it like {option} 0-3,7")
        out.update(range(first, last + 1))
    return tuple(sorted(out))
