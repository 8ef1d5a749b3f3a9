"""Entry point: parse the command line, run one command, turn errors into messages and exit codes.

Exit codes are a contract: 0 clean, 1 a verdict, 2 unusable input, 3 our own failure, 130 Ctrl-C, 141 a closed pipe.
Only the verdict of a command (such as `check`: regressed) returns 1.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn, TextIO

from usp_prof._version import __version__
from usp_prof.cli.command_files import command_files, load, summary_of
from usp_prof.model.errors import NO_ROOM, UspProfError
from usp_prof.model.printable import for_log, one_line, printable

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from _typeshed import SupportsWrite


class OpenUntilTheEnd(ExitStack):
    """Resources that a command keeps open until it ends."""

    def __init__(self) -> None:
        """Start without an executor."""
        super().__init__()
        self.executor: Executor | None = None
        """The executor named by the options, once it is open."""


class Exit(IntEnum):
    """Exit codes that do not come from a command."""

    UNUSABLE = 2
    FAILED = 3
    INTERRUPTED = 130
    CLOSED_PIPE = 141


def run_to_exit(command: Callable[[], int], *, show_tracebacks: bool) -> int:
    """Run a command and return its exit code; every error is printed as one line with a hint, without a traceback.

    With `show_tracebacks`, the traceback is printed before that line; the exit code is the same.
    """
    try:
        status = command()
        sys.stdout.flush()  # a full disk fails here instead of at interpreter exit
    except BrokenPipeError:
        _forget(sys.stdout)
        status = Exit.CLOSED_PIPE
    except KeyboardInterrupt:
        status = _stopped()
    # The last and only place that catches everything: otherwise Python would exit with 1, which means a verdict.
    # Unexpected errors are reported as internal errors, with the traceback in a file (`_failed`).
    except Exception as error:  # noqa: BLE001 - see above
        if show_tracebacks:
            _write(traceback.format_exc())
        status = _failed(error)
    _write("")  # drops output that a full disk rejects, instead of failing at interpreter exit
    return status


def _stopped() -> int:
    _write("stopped\n")
    return Exit.INTERRUPTED


def _failed(error: Exception) -> int:
    """Print one line on what went wrong, and return the exit code."""
    if isinstance(error, UspProfError):
        _say(error.message, error.hint)
        return Exit.UNUSABLE
    if isinstance(error, OSError) and (status := _failed_system_call(error)):
        return status
    if isinstance(error, ModuleNotFoundError) and (extra := EXTRAS.get((error.name or "").partition(".")[0])):
        _say(f"this needs {error.name}, which is not installed", f"pip install 'usp-prof[{extra}]'")
        return Exit.UNUSABLE
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # an unknown user in `~user/x`, or no HOME
        _say(str(error), "write the path without ~; USP_PROF_CACHE names a folder for the cache")
        return Exit.UNUSABLE
    _forget(sys.stdout)
    if isinstance(error, MemoryError):
        _say("out of memory", "read fewer ranks with --ranks, or use a machine with more memory")
    else:
        _say(f"internal error: {type(error).__name__}: {error}", _details())
    return Exit.FAILED


def _failed_system_call(error: OSError) -> int:
    """Print what the system rejected and return the exit code; 0 if the user cannot fix it."""
    where = f" {error.filename}" if error.filename else ""
    if error.errno in NO_ROOM:
        _forget(sys.stdout)
        _say(f"cannot write or read{where}: {error.strerror}", "free some space, or write elsewhere with -o")
        return Exit.FAILED
    if error.errno == errno.EBADF and not where:
        _forget(sys.stdout)
        _say("standard output is closed", "write to a file with -o, or to /dev/null")
        return Exit.FAILED
    if error.errno == errno.ENOENT and not where:
        if _has_current_folder():  # `tempfile` found no folder
            _say(f"no temporary folder is writable: {error.strerror}", "set TMPDIR to a writable folder")
            return Exit.FAILED
        _say("the current folder no longer exists", "change to another folder: cd")
        return Exit.UNUSABLE
    if where:
        _say(f"cannot use{where}: {error.strerror}", "check the path and its permissions")
        return Exit.UNUSABLE
    return 0


def _has_current_folder() -> bool:
    try:
        return bool(os.getcwd())  # noqa: PTH109 - only to see whether it exists
    except OSError:
        return False


EXTRAS = {
    "bokeh": "report", "streamlit": "dashboard", "uvicorn": "dashboard", "mcp": "agent", "distributed": "cluster",
    "fsspec": "cloud", "obstore": "cloud", "torch": "trainer", "viztracer": "perfetto", "hta": "hta",
}  # fmt: skip
"""Packages outside the base install, and the extra that installs each."""


def _details() -> str:
    """Write the traceback to its own file; return a hint that names the file."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="usp-prof-error-", suffix=".txt", delete=False) as file:
            traceback.print_exc(file=file)
    except OSError:
        return "run again with --verbose for the details"
    return f"the details are in {file.name}; please report them"


def _say(message: str, hint: str) -> None:
    hinted = f"hint: {one_line(hint)}\n" if hint else ""
    _write(f"error: {one_line(message)}\n{hinted}")


def _write(text: str) -> None:
    """Write to standard error; if that fails, only the exit code remains."""
    try:
        sys.stderr.write(for_log(printable(text)))
        sys.stderr.flush()
    except OSError:
        _forget(sys.stderr)


def _forget(stream: TextIO) -> None:
    """Discard the buffer of a stream: writing it at interpreter exit would fail again."""
    try:
        number = stream.fileno()
        with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - not one of our paths
            os.dup2(nowhere.fileno(), number)
    except (OSError, ValueError):  # it is closed, or not a file
        return


def _open_closed_streams() -> None:
    """Replace standard streams that were closed (`>&-`): writing results then fails, and messages are dropped.

    Otherwise the next opened file would get the stream's number, and output to the stream would go to that file.
    """
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks with JSON escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _escape_unknown_letters() -> None:
    """Make standard output accept every character in any encoding; an error handler set by the user is kept."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in {"strict", "surrogateescape"}:
        codecs.register_error("usp-prof", _escaped)
        sys.stdout.reconfigure(errors="usp-prof")


# The command line: the parser, which adds the options of the requested command.

_UNKNOWN_COMMAND = re.compile(r"argument COMMAND: invalid choice: '([^']*)'")
_WITHOUT_VALUE = re.compile(r"(--[^=]+)=--|(-\w)--")
"""An option whose value is `--`, for which argparse returns an empty list until Python 3.12."""


class _Parser(argparse.ArgumentParser):
    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Write the help; the base class would ignore a full disk."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        choice = _UNKNOWN_COMMAND.search(message)
        near = get_close_matches(choice[1], command_files(), n=1) if choice else []
        hint = f"did you mean {near[0]}?" if near else f"{self.prog} --help"
        self.exit(2, f"error: {message}\nhint: {hint}\n")


def _named_place(text: str) -> str:
    """Reject an empty text: `--store "$STORE"` in a script with an unset variable would fill the user's cache."""
    if not text:
        raise argparse.ArgumentTypeError("the folder is empty; name one, or omit the option")
    return text


def common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command takes."""
    group = parser.add_argument_group("output")
    group.add_argument("-q", "--quiet", action="store_true", help="show errors only")
    group.add_argument("-v", "--verbose", action="store_true", help="show progress and tracebacks")
    group.add_argument("--no-color", action="store_true", help="no colors (also: NO_COLOR=1)")
    group.add_argument(
        "--cache-dir",
        "--store",
        metavar="DIR",
        type=_named_place,
        help="folder or URL of the cache (also: USP_PROF_CACHE)",
    )


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Build the parser; with `only`, add the options of that command alone, so that `--help` stays fast."""
    parser = _Parser(
        prog="usp-prof",
        description="Show where each training step goes, which rank or link is at fault, and what a change would save.",
        epilog="usp-prof COMMAND --help shows examples. Exit codes: 0 success, 1 verdict (regressed, nothing fits), "
        "2 unusable input, 3 failure of usp-prof or of the machine.",
    )
    parser.add_argument("--version", action="version", version=f"usp-prof {__version__}")
    parser.set_defaults(refuse=parser.error)  # of the command if one is named, so that its usage and help are shown
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name in command_files():
        summary = summary_of(name)
        child = commands.add_parser(
            name, help=summary, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if only in (None, name):
            module = load(name)
            module.configure(child)
            common_options(child)
            child.set_defaults(refuse=child.error)
            child.epilog = f"examples:\n{module.EXAMPLES.rstrip()}"
    return parser


def _complete(parser: argparse.ArgumentParser) -> None:
    """Print completions for the shell and exit; without argcomplete, shells do not ask for any."""
    try:
        import argcomplete  # noqa: PLC0415 - needed only for shell completion
    except ImportError:
        return
    argcomplete.autocomplete(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    _open_closed_streams()
    _escape_unknown_letters()
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # while the command's modules were still being imported
        return _stopped()


def _run(words: list[str]) -> int:
    line = os.environ.get("COMP_LINE", "") if "_ARGCOMPLETE" in os.environ else ""
    if line:  # a shell asks for completions: the words are in the environment
        words = line.split()[1:]

    def command() -> int:
        first = next((word for word in words if not word.startswith("-")), "")
        parser = build_parser(first if first in command_files() else "")
        if line:
            _complete(parser)
        try:
            args, unknown_words = parser.parse_known_args(words or ["--help"])
            if unknown_words:
                args.refuse(f"unrecognized arguments: {' '.join(unknown_words)}")
            for option in filter(None, map(_WITHOUT_VALUE.fullmatch, words)):
                args.refuse(f"argument {option[1] or option[2]}: expected a value, not --")
        finally:  # help, version and usage exit here: flush them like any result
            sys.stdout.flush()
        try:
            with OpenUntilTheEnd() as args.open_until_the_end:
                return load(args.command).run(args)
        finally:
            _wait_for_trackers()

    return run_to_exit(command, show_tracebacks=bool({"-v", "--verbose"}.intersection(words)))


_TRACKERS = ("loky.backend.resource_tracker", "multiprocessing.resource_tracker")


def _wait_for_trackers() -> None:
    """Stop the processes that clean up after workers, and wait for them.

    They end after this process does. If PID 1 does not wait for them, as in most containers, they stay as zombies.
    Python stops its own tracker from 3.12 on, with the same private call: there is no public one. This is done only in
    this program's own process: in a process that imports the library, a tracker may serve others.
    """
    if "multiprocessing.process" not in sys.modules or sys.modules["multiprocessing.process"].active_children():
        return
    for name in _TRACKERS:
        if name in sys.modules:
            sys.modules[name]._resource_tracker._stop()  # noqa: SLF001


if __name__ == "__main__":
    sys.exit(main())
