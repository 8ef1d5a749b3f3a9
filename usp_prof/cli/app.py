"""Entry point: parse the command line, run one command, turn errors into messages and exit codes.

Exit codes are a contract: 0 clean, 1 a verdict, 2 unusable input, 3 our own failure, 130 Ctrl-C, 141 a closed pipe.
1 comes from a command's own verdict (`check` regressed) and from nowhere else.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, Protocol

from usp_prof._version import __version__
from usp_prof.model.errors import NO_ROOM, UspProfError
from usp_prof.model.printable import for_log, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Exit(IntEnum):
    """What the codes mean that no command gives by itself."""

    UNUSABLE = 2
    FAILED = 3
    INTERRUPTED = 130
    CLOSED_PIPE = 141


def run_to_exit(command: Callable[[], int], *, show_tracebacks: bool) -> int:
    """Run a command and give its exit code; whatever goes wrong leaves one line, a hint, and no traceback."""
    try:
        status = command()
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk shows here, and not while the interpreter ends
    except UspProfError as error:
        if show_tracebacks:
            raise
        _say(error.message, error.hint)
        return Exit.UNUSABLE
    except BrokenPipeError:
        _forget_output()
        return Exit.CLOSED_PIPE
    except KeyboardInterrupt:
        return _stopped()
    except OSError as error:
        if show_tracebacks:
            raise
        return _failed_system_call(error)
    except Exception as error:
        if show_tracebacks:
            raise
        return _failed(error)
    return status


def _stopped() -> int:
    sys.stderr.write("stopped\n")
    return Exit.INTERRUPTED


def _failed_system_call(error: OSError) -> int:
    where = f" {error.filename}" if error.filename else ""
    if error.errno in NO_ROOM:
        _forget_output()
        _say(f"cannot write or read{where}: {error.strerror}", "free some room, or write elsewhere with -o")
        return Exit.FAILED
    if error.filename:
        _say(f"cannot use{where}: {error.strerror}", "check the path and its rights")
        return Exit.UNUSABLE
    return _failed(error)


EXTRAS = {
    "bokeh": "report", "streamlit": "dashboard", "uvicorn": "dashboard", "mcp": "agent", "distributed": "cluster",
    "fsspec": "cloud", "obstore": "cloud", "torch": "trainer", "viztracer": "perfetto", "hta": "hta",
}  # fmt: skip
"""Packages that the base install lacks, and the extra that brings each."""


def _failed(error: Exception) -> int:
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get((error.name or "").partition(".")[0])):
        _say(f"this needs {error.name}, which is not installed", f"pip install 'usp-prof[{extra}]'")
        return Exit.UNUSABLE
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # `~nobody/x`, or no HOME
        _say(str(error), "write the path without ~; USP_PROF_CACHE names a folder for the cache")
        return Exit.UNUSABLE
    _forget_output()
    if isinstance(error, MemoryError):
        _say("there is not enough memory", "read fewer ranks with --ranks, or run where more is free")
        return Exit.FAILED
    _say(f"internal error: {type(error).__name__}: {error}", _details())
    return Exit.FAILED


def _details() -> str:
    """Write the traceback to a file of its own; gives the hint that names it."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="usp-prof-error-", suffix=".txt", delete=False) as file:
            traceback.print_exc(file=file)
    except OSError:
        return "run again with --verbose for the details"
    return f"the details are in {file.name}; please report them"


def _say(message: str, hint: str) -> None:
    if sys.stderr is not None:
        hinted = f"hint: {one_line(hint)}\n" if hint else ""
        sys.stderr.write(for_log(f"error: {one_line(message)}\n{hinted}"))


def _forget_output() -> None:
    """Drop what standard output still holds: writing it while the interpreter ends would fail once more."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # it is closed, or no file
        return


# The command line: its commands, and the parser that fills in the options of the one that is asked for.

COMMANDS: tuple[tuple[str, str], ...] = (
    ("info", "What was recorded: ranks, axes, steps, devices, versions, health."),
    ("analyze", "Where every nanosecond of a step goes: one report of everything."),
    ("query", "Ask the tables of all ranks in SQL."),
    ("tables", "What every table and column means."),
    ("export", "Write all ranks into one file for Perfetto."),
    ("read", "Read a share of a run's traces into the store, on any machine."),
    ("cache", "Measure or empty what is kept of traces that were read."),
    ("dashboard", "See where the step went, from any browser."),
    ("synth", "Write traces of a made-up run whose truth is known."),
    ("baseline", "Measure runs into a file that later runs are checked against."),
    ("check", "Did this run get slower than its baseline, and why?"),
    ("compare", "What changed between runs: metrics, waterfall, ops, kernels, calls."),
    ("whatif", "What would a change be worth: replay the run with it made."),
    ("plan", "Which configuration should be trained: memory and time of all, ranked."),
    ("memory", "What fills memory: every pipeline rank predicted, beside what was measured."),
    ("sweep", "Run a grid of configurations with the trainer: one table, heat maps, the planner judged."),
    ("learn", "The playbook, live: record a technique before and after, and see the difference."),
    ("mcp", "Serve runs to an agent over MCP: diagnosis step by step, read-only."),
    ("explain", "What does a finding mean, and what can be done?"),
    ("trend", "When did it get slower: steps and drift over checked runs."),
)
"""Name and one-line summary of each command; its module is `usp_prof.cli.<name>` (a dash becomes an underscore)."""


class Command(Protocol):
    """What a command's module offers."""

    EXAMPLES: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it; give the exit code."""
        ...


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"error: {message}\nhint: {self.prog} --help\n")


def common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command takes."""
    group = parser.add_argument_group("output")
    group.add_argument("-q", "--quiet", action="store_true", help="no progress, no notes; errors only")
    group.add_argument("-v", "--verbose", action="store_true", help="say what is being done, and show tracebacks")
    group.add_argument("--no-color", action="store_true", help="no colours (also: NO_COLOR=1)")
    group.add_argument(
        "--cache-dir",
        "--store",
        metavar="DIR",
        help="where read traces are kept: a folder or URL (also: USP_PROF_CACHE)",
    )


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Build the parser; with `only`, just that command's options are filled in, so that `--help` stays quick."""
    parser = _Parser(
        prog="usp-prof",
        description="Where does the step of a training run go, who is to blame, and what would a change be worth?",
        epilog="usp-prof COMMAND --help shows examples. Exit codes: 0 clean, 1 regressed, 2 unusable input, "
        "3 a failure of usp-prof or of the machine.",
    )
    parser.add_argument("--version", action="version", version=f"usp-prof {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, summary in COMMANDS:
        child = commands.add_parser(
            name, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if only in (None, name):
            module = load(name)
            module.configure(child)
            common_options(child)
            child.epilog = f"examples:\n{module.EXAMPLES.rstrip()}"
    return parser


def load(name: str) -> Command:
    """Import a command's module."""
    return import_module(f"usp_prof.cli.{name.replace('-', '_')}")


def _complete(parser: argparse.ArgumentParser) -> None:
    """Tell the shell what could follow, and end; without argcomplete a shell asks nothing."""
    try:
        import argcomplete  # noqa: PLC0415 - only a shell that completes asks for it
    except ImportError:
        return
    argcomplete.autocomplete(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; give the exit code."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # while the command's modules were still being imported
        return _stopped()


def _run(words: list[str]) -> int:
    line = os.environ.get("COMP_LINE", "") if "_ARGCOMPLETE" in os.environ else ""
    if line:  # a shell asks for what could follow: the words are in the environment
        words = line.split()[1:]
    names = {name for name, _ in COMMANDS}
    first = next((word for word in words if not word.startswith("-")), None)
    parser = build_parser(first if first in names else "")
    if line:
        _complete(parser)
    args = parser.parse_args(words)
    if args.command is None:
        parser.print_help()
        return 0
    return run_to_exit(lambda: load(args.command).run(args), show_tracebacks=args.verbose)


if __name__ == "__main__":
    sys.exit(main())
