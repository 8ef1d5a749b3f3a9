"""Exit codes are a contract: 0 clean, 1 a verdict, 2 unusable input, 3 our own failure, 130 Ctrl-C, 141 a closed pipe.

1 comes from a command's own verdict (`check` regressed) and from nowhere else.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from enum import IntEnum
from typing import TYPE_CHECKING

from usp_prof.model.errors import NO_ROOM, UspProfError
from usp_prof.model.printable import for_log, one_line

if TYPE_CHECKING:
    from collections.abc import Callable


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
        sys.stderr.write("stopped\n")
        return Exit.INTERRUPTED
    except OSError as error:
        if show_tracebacks:
            raise
        return _failed_system_call(error)
    except Exception as error:
        if show_tracebacks:
            raise
        return _failed(error)
    return status


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


def _failed(error: Exception) -> int:
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # `~nobody/x`, or no HOME
        _say(str(error), "write the path without ~; USP_PROF_CACHE names a folder for the cache")
        return Exit.UNUSABLE
    _forget_output()
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
