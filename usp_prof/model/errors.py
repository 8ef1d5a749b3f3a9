"""Errors that are raised on purpose.

`UspProfError` is the only exception that the library raises for unusable input or wrong usage::

    UspProfError
    ├── InputError      an unusable path, file or trace
    └── UsageError      an unknown option or name, or an invalid value
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from difflib import get_close_matches

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Errors of the machine, not of the user."""


class UspProfError(Exception):
    """What is wrong with which file or option; `hint` says what to do, and a traceback shows it as a note."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        note = f"hint: {hint}"
        if hint and note not in getattr(self, "__notes__", ()):  # Dask's pickling preserves notes
            self.add_note(note)

    def __reduce__(self) -> tuple[object, tuple[type[UspProfError], str, str]]:
        """Keep the hint when pickled between processes."""
        return _restored, (type(self), self.message, self.hint)


def _restored(kind: type[UspProfError], message: str, hint: str) -> UspProfError:
    return kind(message, hint=hint)


class InputError(UspProfError):
    """An unusable path, file or trace."""


class UsageError(UspProfError):
    """An unknown option or name, or an invalid value."""


MOST_NAMED = 12
"""Number of valid names listed if none is similar."""


def unknown_name(kind: str, name: object, valid_names: Iterable[str], *, list_command: str = "") -> UsageError:
    """Build the error for an unknown name (or a value of another type), with similar valid names or some of them.

    If there are many and none is similar, the hint is `list_command`, which prints all.
    """
    names = sorted(valid_names)
    close = get_close_matches(str(name), names, n=3)
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    elif list_command and len(names) > MOST_NAMED:
        hint = f"{list_command} lists all {len(names)}"
    else:
        more = f", and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        hint = f"choose from {', '.join(names[:MOST_NAMED])}{more}" if names else ""
    return UsageError(f"no {kind} is named {name!r}", hint=hint)
