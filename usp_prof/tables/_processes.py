"""How does a process begin that reads ranks for this one? As a copy of it where that is safe, else from nothing.

A copy has everything loaded and works at once; another first takes a fifth of a second of a processor to load it. Both
are talked to by pipes, and neither imports the caller's main module as `multiprocessing` would.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from usp_prof.readers.own_process import ENVIRONMENT, may_be_copied
from usp_prof.tables import _rank_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from usp_prof.readers.cache import Cache


@dataclass(frozen=True, slots=True)
class Process:
    """A process that reads ranks: what it is told, what it says, and how its end is awaited."""

    told: IO[bytes]
    says: IO[bytes]
    wait: Callable[[], object]


def begin(cache: Cache) -> Process:
    """Begin a process that puts into `cache` what it reads (`_rank_process.main`); raises `OSError` where none can be.

    To await the end of one of several, close what all of them are told: a copy holds open what there was before it.
    """
    words = [str(cache.folder), str(cache.limit_bytes)]
    return _copied(words) if may_be_copied() else _anew(words)


def _copied(words: list[str]) -> Process:
    jobs, told = os.pipe()
    says, answers = os.pipe()
    process = os.fork()
    if not process:
        os.close(told)
        os.close(says)
        _work(words, jobs, answers)
    os.close(jobs)
    os.close(answers)
    return Process(os.fdopen(told, "wb"), os.fdopen(says, "rb"), partial(os.waitpid, process, 0))


def _work(words: list[str], jobs: int, answers: int) -> NoReturn:
    """Do the copy's work. Nothing of what it was copied with is taken apart, written or cleaned up at its end."""
    status = 1
    try:
        status = _rank_process.main(words, os.fdopen(jobs, "rb"), os.fdopen(answers, "wb"))
    finally:
        os._exit(status)


def _anew(words: list[str]) -> Process:
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", _rank_process.__name__, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**ENVIRONMENT, **os.environ, "PYTHONPATH": path},
    )
    if process.stdin is None or process.stdout is None:
        raise OSError("a process without pipes")
    return Process(process.stdin, process.stdout, process.wait)
