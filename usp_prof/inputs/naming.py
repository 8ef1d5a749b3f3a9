"""Which rank does a path speak of? The words that recorders put into file and folder names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from usp_prof import limits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_WORDS = (
    re.compile(r"(?<![a-z])rank[-_. ]?0*([0-9]+)(?![0-9])", re.IGNORECASE),
    re.compile(r"(?<![a-z])(?:worker|device|gpu)[-_. ]?0*([0-9]+)(?![0-9])", re.IGNORECASE),
)
_NUMBER = re.compile(r"(\d+)(?=\D*\Z)")
_SUFFIXES = (".gz", ".zst", ".json", ".trace", ".pt")


def stem(path: Path) -> str:
    """Give the file name without the endings of packing and format."""
    name = path.name
    while any(name.endswith(suffix) for suffix in _SUFFIXES):
        name = name.rpartition(".")[0]
    return name


def rank_from_words(path: Path) -> int | None:
    """Find a rank that the file name or, failing that, a folder above it states in words (`rank3`, `worker_3`)."""
    for name in (stem(path), path.parent.name):
        for word in _WORDS:
            found = word.findall(name)
            if found:
                return limits.whole(found[-1], limits.RANK)
    return None


def ranks_from_numbers(paths: Sequence[Path]) -> dict[Path, int] | None:
    """Read bare numbers as ranks, only when they count 0, 1, 2, ... over all the files (or over their folders)."""
    for names in ([stem(path) for path in paths], [path.parent.name for path in paths]):
        found = [_NUMBER.search(name) for name in names]
        numbers = [limits.whole(match[1], limits.RANK) for match in found if match is not None]
        if len(numbers) == len(paths) > 1 and set(numbers) == set(range(len(paths))):
            return {path: number for path, number in zip(paths, numbers, strict=True) if number is not None}
    return None
