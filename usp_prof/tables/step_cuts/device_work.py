"""Device work of a rank as one sequence of symbols, and the complete periods of that sequence.

A symbol is one kind of work: a kernel by its name, a communication by operation, axis, group size and bytes. Symbols
are shared by all ranks, so their sequences can be compared. Copies are excluded: how often they occur (logging, data
loading) differs from step to step.

A training step has micro-batches, and these have layers: all three repeat. Rare symbols distinguish them. A gradient
all-reduce that recurs every 400 kernels shows that the cycle has at least 400 kernels, whatever else repeats within.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.repetition import Repetition, find_repetition
from usp_prof.columns.rows import first_rows, group_codes, lookup, rows_by_code
from usp_prof.columns.table import Columns
from usp_prof.tables.table_set import Source

REGULAR = 1.25
"""Maximum ratio of longest to shortest distance for occurrences that recur regularly."""
EVEN = 1.5
"""The same ratio within one cycle, including the distance around its end."""
CLUSTER = 0.3
"""Occurrences closer than this share of the longest distance form a cluster, like a layer's kernels in one pass."""
FREQUENT = 3
"""Minimum occurrences for any symbol's distances to be meaningful; for significant symbols, two are enough."""
SHARE = 0.2
"""Minimum share of symbols that occur once in each part, if a cycle has parts."""


def recurring(codes: Ints, is_distinctive: Flags, light: Flags) -> Ints:
    """Return the symbols that recur at regular distances from beginning to end, alone or in clusters.

    `is_distinctive` marks symbols that are significant even with only two occurrences; `light` marks symbols to ignore.
    """
    symbols = []
    for code, places in rows_by_code(codes).items():
        gaps = np.diff(places)
        if not len(gaps) or light[places[0]]:
            continue
        heads = np.r_[places[0], places[1:][gaps > CLUSTER * gaps.max()]]
        if len(heads) >= (2 if is_distinctive[places[0]] else FREQUENT) and _regular(heads, len(codes)):
            symbols.append(code)
    return np.array(symbols, np.int64)


def _regular(heads: Ints, length: int) -> bool:
    gaps = np.diff(heads)
    most = REGULAR * gaps.min()
    return bool(gaps.max() <= most and heads[0] <= most and length - heads[-1] <= most)


def parts_of(cycle: Ints) -> int:
    """Return the number of equal parts of one cycle (micro-batches or several steps), or 1 if there are none.

    Parts are recognized by symbols that occur once in each: at even distances, including the one around the end.
    """
    kinds = rows_by_code(cycle)
    counts: dict[int, int] = {}
    for places in kinds.values():
        if len(places) > 1 and _longest_gap(places, len(cycle)) <= EVEN * int(np.diff(places).min()):
            counts[len(places)] = counts.get(len(places), 0) + 1
    return max((count for count, number in counts.items() if number >= SHARE * len(kinds)), default=1)


def in_one_part(cycle_flags: Flags, parts: int) -> bool:
    """Return whether there are marked symbols and they are in one place of a cycle rather than in all of its parts."""
    places = np.flatnonzero(cycle_flags)
    most = min(0.7, 1.6 / parts)
    return bool(len(places)) and _longest_gap(places, len(cycle_flags)) > most * len(cycle_flags)


def _longest_gap(places: Ints, length: int) -> int:
    """Return the longest distance to the next occurrence, including from the last one around to the first."""
    return int(np.diff(np.r_[places, places[0] + length]).max())


OPTIMIZER = re.compile(
    r"multi_tensor_apply|_foreach_|optimi[sz]er|(?:\b|_|fused)(?:adam|adamw|adagrad|lamb|lars|lion|muon|sgd)(?![a-z])",
    re.IGNORECASE,
)
"""Names of kernels and ops that update parameters."""
SMALL_BYTES = 1024
"""Smaller communication (a loss, a flag) may be logging, which need not occur in each step."""
LIGHT = 0.002
"""Kernels below this share of the time are ignored for the period, unless they communicate or update parameters."""


class Alphabet:
    """Codes for kinds of work, shared by all ranks of a run."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def codes(self, texts: list[str]) -> Ints:
        """Return the code of each text; new texts get the next free code."""
        return np.array([self._codes.setdefault(text, len(self._codes)) for text in texts], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """Kernels and communication of one rank in order of start; all arrays are parallel."""

    symbol: Ints
    name: Ints
    """Code of the kernel's name alone, which exists even if a rank does not record what it communicated."""
    start_ns: Ints
    end_ns: Ints
    updates: Flags
    """Whether the kernel updates parameters, by its name."""
    operation: Ints
    """Code of the operation and axis for communication; -1 for compute."""
    small: Flags
    """Whether it is communication of a few bytes."""
    first_ns: int
    """First start and last end of all device activity, including copies."""
    last_ns: int

    def __len__(self) -> int:
        """Return the number of activities."""
        return len(self.symbol)

    def after_update(self) -> Flags:
        """Mark activities that directly follow a parameter update."""
        before = np.r_[False, self.updates[:-1]]
        return np.asarray(before & ~self.updates)


def device_work(source: Source, alphabet: Alphabet) -> DeviceWork:
    """Build the sequence from a rank's tables."""
    all_activities = Columns(source.view("activities"))
    activities = all_activities.take(all_activities.matches("kind", "compute", "communication"))
    parts = Columns(source.view("collectives"))
    name_code, names = activities.codes("name")
    name_symbol = lookup(alphabet.codes([f"kernel {name}" for name in [*names, ""]]), name_code, missing=-1)
    updates = activities.satisfies("name", OPTIMIZER.search)
    is_communication = activities.matches("kind", "communication")
    # Row of `collectives` of each activity, or -1.
    part = activities["collective"]
    of_part, operation_of_part = _communication_symbols(parts, alphabet)
    symbol = np.where(part >= 0, lookup(of_part, part, missing=-1), name_symbol)
    operation = np.where(part >= 0, lookup(operation_of_part, part, missing=-1), np.where(is_communication, symbol, -1))
    size = lookup(np.maximum(parts["in_bytes"], parts["out_bytes"]), part, missing=-1)
    start = activities["start_ns"]
    return DeviceWork(
        symbol,
        name_symbol,
        start,
        start + activities["dur_ns"],
        updates & ~is_communication,
        operation,
        is_communication & (size >= 0) & (size <= SMALL_BYTES),
        int(all_activities["start_ns"].min(initial=np.iinfo(np.int64).max)),
        int((all_activities["start_ns"] + all_activities["dur_ns"]).max(initial=0)),
    )


def _communication_symbols(parts: Columns, alphabet: Alphabet) -> tuple[Ints, Ints]:
    """Return the symbol of each part, and that of its operation and axis alone."""
    op_code, ops = parts.codes("op")
    axis_code, axes = parts.codes("axis")
    size, count = np.maximum(parts["in_bytes"], parts["out_bytes"]), parts["group_size"]
    kind = group_codes(op_code, axis_code, count, size)
    first = first_rows(kind)
    operations = [f"{ops[op_code[row]]} {axes[axis_code[row]]}" for row in first.tolist()]
    kinds = [f"{text} of {count[row]}: {size[row]}" for text, row in zip(operations, first.tolist(), strict=True)]
    if not len(kind):
        return kind, kind
    return alphabet.codes(kinds)[kind], alphabet.codes(operations)[kind]


def whole_periods(work: DeviceWork) -> Repetition | None:
    """Return the complete periods of a rank's work, or None if nothing clearly repeats or the unit is ambiguous.

    The rarest work that recurs regularly sets the period. If a period has several equal parts, these may be
    micro-batches of one step, or steps. They are micro-batches only if a parameter update or a communication operation
    occurs in just one of them.
    """
    if not len(work):
        return None
    codes = np.unique(work.symbol, return_inverse=True)[1].astype(np.int64)
    is_communication = work.operation >= 0
    is_distinctive = (is_communication & ~work.small) | work.updates
    duration = work.end_ns - work.start_ns
    share = np.bincount(codes, duration) / max(int(duration.sum()), 1)
    light = ~is_distinctive & (is_communication | (share[codes] < LIGHT))
    kinds = recurring(codes, is_distinctive, light)
    periods = find_repetition(
        codes,
        _readiness(work),
        [work.updates] if work.updates.any() else (),
        recurring=kinds,
        least=2 if work.updates.any() else 3,
    )
    if periods is None:
        return None
    middle = slice(int(periods.start[len(periods) // 2]), int(periods.end[len(periods) // 2]))
    parts = parts_of(codes[middle])
    operations = work.operation[middle]
    classes = [work.updates[middle], *(operations == code for code in np.unique(operations[operations >= 0]).tolist())]
    # If any class of symbols occurs in one part only, the whole cycle is one step.
    return periods if parts == 1 or any(in_one_part(flags, parts) for flags in classes) else None


def _readiness(work: DeviceWork) -> Floats:
    """Return the likelihood of a step start at each activity (0 to 1): after parameter updates, or after a pause."""
    busy_until = np.r_[work.start_ns[0], np.maximum.accumulate(work.end_ns)[:-1]]
    pause = np.maximum(work.start_ns - busy_until, 0)
    rank = np.argsort(np.argsort(pause, kind="stable"), kind="stable") / len(pause)
    return np.where(work.after_update(), 1.0, 0.5 * rank)
