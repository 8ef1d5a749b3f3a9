"""What does a process do that reads ranks for another? Take jobs line by line, store tables, say what went wrong."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from usp_prof.model.errors import UspProfError
from usp_prof.readers.cache import Cache, CacheUnwritableError
from usp_prof.readers.manifest import manifest_from
from usp_prof.readers.own_process import make_ours
from usp_prof.tables.read_rank import Job, store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def main(arguments: Sequence[str], jobs: BinaryIO, answers: BinaryIO) -> int:
    """Read jobs until there are no more."""
    cache = Cache(Path(arguments[0]), int(arguments[1]))
    lines: Iterator[bytes] = iter(jobs.readline, b"")
    told = msgspec.json.decode(next(lines))
    manifest = manifest_from(told, "")[0] if told else None
    for line in lines:
        job = msgspec.json.decode(line, type=_Line)
        answer: str | None = ""
        try:
            store(Job(Path(job.path), job.rank, job.key), manifest, cache)
        except CacheUnwritableError:
            answer = None
        except UspProfError as error:
            answer = error.message
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()
    return 0


class _Line(msgspec.Struct):
    path: str
    rank: int
    key: str


if __name__ == "__main__":
    make_ours()  # the memory of one file serves the next
    status = main(sys.argv[1:], sys.stdin.buffer, sys.stdout.buffer)
    os._exit(status)  # all is written; to take a process apart takes a fifth of the time that it took to start
