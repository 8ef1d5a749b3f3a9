"""Cross-rank completeness: missing calls, missing steps, and copied traces, found by comparing ranks.

Members of a group post the same collectives in the same steps, with the same sequence numbers. Only small tables are
read (`ranks`, `groups`, `steps`), whose rows were counted when each rank was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from usp_prof.columns.table import Columns
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import spans
from usp_prof.tables.completeness.device_work import severity, share
from usp_prof.tables.completeness.posted_calls import MARKED
from usp_prof.tables.table_set import Source


def rows(sources: Mapping[int, Source]) -> list[HealthRow]:
    """Return the health rows that only a comparison of ranks can show."""
    steps = {rank: _steps(source) for rank, source in sources.items()}
    return [*_copies(sources), *_steps_of_peers(steps), *_calls(sources, steps)]


def _copies(sources: Mapping[int, Source]) -> Iterator[HealthRow]:
    """Yield a health row for ranks whose events have identical times: one trace was copied under several ranks."""
    ranks_of_content: dict[str, list[int]] = {}
    for rank, source in sources.items():
        content = Columns(source.view("ranks"))["content"]
        if len(content) and content[0]:
            ranks_of_content.setdefault(str(content[0]), []).append(rank)
    for ranks in ranks_of_content.values():
        if len(ranks) > 1:
            detail = f"ranks {spans(ranks)} have the same events at the same times: the traces are copies"
            yield HealthRow("identical_ranks", Severity.ERROR, count=len(ranks), detail=detail)


def _steps(source: Source) -> tuple[str, tuple[int, ...]]:
    """Return the source of a rank's steps, and their numbers."""
    steps = Columns(source.view("steps"))
    return (str(steps["source"][0]) if len(steps) else "", tuple(steps["step"].tolist()))


def _steps_of_peers(steps: Mapping[int, tuple[str, tuple[int, ...]]]) -> Iterator[HealthRow]:
    """Yield a health row for ranks that lack steps which most ranks with the same kind of marks have."""
    for source in MARKED:
        numbers_of = {rank: set(numbers) for rank, (kind, numbers) in steps.items() if kind == source}
        ranks_with: dict[int, int] = {}
        for numbers in numbers_of.values():
            for number in numbers:
                ranks_with[number] = ranks_with.get(number, 0) + 1
        expected = {number for number, count in ranks_with.items() if 2 * count >= len(numbers_of)}
        for rank, numbers in numbers_of.items():
            if missing := sorted(expected - numbers):
                detail = (
                    f"most other ranks have step {spans(missing)}: {share(len(missing), len(expected))} of the steps "
                    "are missing from this trace"
                )
                yield HealthRow("steps_missing", Severity.ERROR, rank, len(missing), detail)


@dataclass(frozen=True, slots=True)
class _Member:
    """One rank's record of one group."""

    rank: int
    steps: tuple[str, tuple[int, ...]]
    calls: int
    first: int
    last: int
    missing: int


def _calls(sources: Mapping[int, Source], steps: Mapping[int, tuple[str, tuple[int, ...]]]) -> list[HealthRow]:
    """Return health rows for collectives that a rank lacks: gaps in sequence numbers, or fewer than other members."""
    members: dict[str, list[_Member]] = {}
    for rank, source in sources.items():
        groups = Columns(source.view("groups"))
        counts = (groups[name].tolist() for name in ("calls", "first_sequence", "last_sequence", "missing_sequences"))
        for key, calls, first, last, missing in zip(groups["group"].tolist(), *counts, strict=True):
            if calls > 0 or first >= 0:
                members.setdefault(key, []).append(_Member(rank, steps[rank], calls, first, last, missing))
    gaps: dict[int, list[int]] = {}
    fewer: dict[int, list[int]] = {}
    for of_group in members.values():
        # Numbers that no member has belong to calls without a separate kernel, such as coalesced ones.
        numbered = [member.missing for member in of_group if member.first >= 0]
        unused = min(numbered) if len(numbered) > 1 else 0
        for member in of_group:
            gap = member.missing - unused
            if gap > 0:
                _add(gaps, member.rank, gap, member.last - member.first + 1)
                continue
            counts_in_same_steps = [
                other.calls for other in of_group if other.steps == member.steps and other.calls >= 0
            ]
            if member.calls >= 0 and max(counts_in_same_steps, default=0) > member.calls and member.first < 0:
                _add(fewer, member.rank, max(counts_in_same_steps) - member.calls, max(counts_in_same_steps))
    return [
        HealthRow(code, severity(count, total), rank, count, f"{share(count, total)} of {loss}")
        for code, counts_by_rank, loss in (
            ("sequence_gaps", gaps, "the sequence numbers of its collectives are missing, so their calls are lost"),
            ("calls_missing", fewer, "the collectives that other members of its groups posted in the same steps"),
        )
        for rank, (count, total) in counts_by_rank.items()
    ]


def _add(counts_by_rank: dict[int, list[int]], rank: int, count: int, total: int) -> None:
    of_rank = counts_by_rank.setdefault(rank, [0, 0])
    of_rank[0] += count
    of_rank[1] += total
