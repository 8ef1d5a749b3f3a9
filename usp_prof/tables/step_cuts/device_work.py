"""Device work of a rank as one sequence of symbols, and the whole periods of that sequence.

A symbol stands for one kind of work: a kernel by its name, a communication by operation, axis, group size and bytes.
The same kind has the same symbol on all ranks, so sequences of several ranks can be set side by side. Copies are left
out: how often they occur (logging, data loading) differs from step to step.

A training step holds micro-batches, and these hold layers: all three repeat. What tells them apart is what occurs
rarely. A gradient all-reduce that recurs every 400 kernels says that the cycle is not shorter than 400 kernels,
whatever else repeats within.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.repetition import find_repetition
from usp_prof.columns.rows import first_rows, group_codes, lookup, rows_by_code
from usp_prof.columns.table import Columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from usp_prof.columns.arrays import Flags, Floats, Ints
    from usp_prof.columns.repetition import Repetition
    from usp_prof.tables.table_set import Source


REGULAR = 1.25
"""Longest over shortest distance between occurrences that recur regularly."""
EVEN = 1.5
"""The same within one cycle, around its end."""
CLUSTER = 0.3
"""Occurrences closer than this share of the longest distance belong together, as a layer's kernels of one pass do."""
FREQUENT = 3
"""Occurrences from which on the distances of any symbol say something; of a telling one, two do."""
SHARE = 0.2
"""Share of the kinds of symbols that occur once in each part, where a cycle has parts."""


def recurring(codes: Ints, telling: Flags, light: Flags) -> Ints:
    """List the symbols that recur at regular distances from begin to end, alone or in clusters.

    `telling` marks symbols that say much even where they occur twice only; those that `light` marks say nothing.
    """
    symbols = []
    for code, places in rows_by_code(codes).items():
        gaps = np.diff(places)
        if not len(gaps) or light[places[0]]:
            continue
        heads = np.r_[places[0], places[1:][gaps > CLUSTER * gaps.max()]]
        if len(heads) >= (2 if telling[places[0]] else FREQUENT) and _regular(heads, len(codes)):
            symbols.append(code)
    return np.array(symbols, np.int64)


def _regular(heads: Ints, length: int) -> bool:
    gaps = np.diff(heads)
    most = REGULAR * gaps.min()
    return bool(gaps.max() <= most and heads[0] <= most and length - heads[-1] <= most)


def parts_of(cycle: Ints) -> int:
    """Return the number of equal parts of one cycle: micro-batches, or several steps; 1 for none.

    A part shows by symbols that occur once in each: at even distances, also from the last one around to the first.
    """
    kinds = rows_by_code(cycle)
    counts: dict[int, int] = {}
    for places in kinds.values():
        if len(places) > 1 and _longest_gap(places, len(cycle)) <= EVEN * int(np.diff(places).min()):
            counts[len(places)] = counts.get(len(places), 0) + 1
    return max((count for count, number in counts.items() if number >= SHARE * len(kinds)), default=1)


def in_one_part(cycle_flags: Flags, parts: int) -> bool:
    """Return whether marked symbols, of which there are some, keep to one place of a cycle instead of all its parts."""
    places = np.flatnonzero(cycle_flags)
    most = min(0.7, 1.6 / parts)
    return bool(len(places)) and _longest_gap(places, len(cycle_flags)) > most * len(cycle_flags)


def update_in_one_part(classes: Sequence[Flags], parts: int) -> bool:
    """Return whether any class of symbols occurs in one part only, so that the whole cycle is one step."""
    return any(in_one_part(flags, parts) for flags in classes)


def _longest_gap(places: Ints, length: int) -> int:
    """Return the longest distance to the next occurrence, the last one's around to the first."""
    return int(np.diff(np.r_[places, places[0] + length]).max())


OPTIMIZER = re.compile(
    r"multi_tensor_apply|_foreach_|optimi[sz]er|(?:\b|_|fused)(?:adam|adamw|adagrad|lamb|lars|lion|muon|sgd)(?![a-z])",
    re.IGNORECASE,
)
"""Names of kernels and ops that update parameters."""
SMALL_BYTES = 1024
"""Smaller communication (a loss, a flag) may be logging, which need not occur in each step."""
LIGHT = 0.002
"""Kernels with less of the time than this say nothing about the period, unless they communicate or update."""


class Alphabet:
    """Numbers for kinds of work, the same for all ranks of a run."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def codes(self, texts: list[str]) -> Ints:
        """Return the number of each text; new ones get the next."""
        return np.array([self._codes.setdefault(text, len(self._codes)) for text in texts], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """Kernels and communication of one rank in order of start; all arrays are parallel."""

    symbol: Ints
    name: Ints
    """Code of the kernel's name alone, which also ranks have that do not say what they communicated."""
    start_ns: Ints
    end_ns: Ints
    updates: Flags
    """Kernels that update parameters, by their names."""
    operation: Ints
    """Which operation on which axis, for communication; -1 for compute."""
    small: Flags
    """Communication of a few bytes."""
    first_ns: int
    """Begin and end of everything on the device, copies too."""
    last_ns: int

    def __len__(self) -> int:
        """Count the activities."""
        return len(self.symbol)

    def after_update(self) -> Flags:
        """Mark what runs first after a run of updates."""
        before = np.r_[False, self.updates[:-1]]
        return np.asarray(before & ~self.updates)


def device_work(source: Source, alphabet: Alphabet) -> DeviceWork:
    """Read the sequence from a rank's tables."""
    everything = Columns(source.view("activities"))
    activities = everything.take(everything.matches("kind", "compute", "communication"))
    parts = Columns(source.view("collectives"))
    name_code, names = activities.codes("name")
    named = lookup(alphabet.codes([f"kernel {name}" for name in [*names, ""]]), name_code, missing=-1)
    updates = activities.satisfies("name", OPTIMIZER.search)
    talks = activities.matches("kind", "communication")
    # Row of `collectives` of each activity; the last row appended below stands for none (-1).
    part = activities["collective"]
    of_part, operation_of_part = _communication_symbols(parts, alphabet)
    symbol = np.where(part >= 0, lookup(of_part, part, missing=-1), named)
    operation = np.where(part >= 0, lookup(operation_of_part, part, missing=-1), np.where(talks, symbol, -1))
    size = lookup(np.maximum(parts["in_bytes"], parts["out_bytes"]), part, missing=-1)
    start = activities["start_ns"]
    return DeviceWork(
        symbol,
        named,
        start,
        start + activities["dur_ns"],
        updates & ~talks,
        operation,
        talks & (size >= 0) & (size <= SMALL_BYTES),
        int(everything["start_ns"].min(initial=np.iinfo(np.int64).max)),
        int((everything["start_ns"] + everything["dur_ns"]).max(initial=0)),
    )


def _communication_symbols(parts: Columns, alphabet: Alphabet) -> tuple[Ints, Ints]:
    """Return each part's symbol, and that of its operation and axis alone."""
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
    """Find the periods of a rank's work that are whole; `None` where nothing clearly repeats, or nobody can tell what.

    A period is as long as the rarest work that recurs regularly. Where it falls into parts that are alike, they may
    be the micro-batches of one step, or steps: micro-batches only if parameters are updated, or an operation is
    communicated, in one of them alone.
    """
    if not len(work):
        return None
    codes = np.unique(work.symbol, return_inverse=True)[1].astype(np.int64)
    talks = work.operation >= 0
    telling = (talks & ~work.small) | work.updates
    duration = work.end_ns - work.start_ns
    share = np.bincount(codes, duration) / max(int(duration.sum()), 1)
    light = ~telling & (talks | (share[codes] < LIGHT))
    kinds = recurring(codes, telling, light)
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
    classes = [work.updates[middle], *(operations == one for one in np.unique(operations[operations >= 0]).tolist())]
    return periods if parts == 1 or update_in_one_part(classes, parts) else None


def _readiness(work: DeviceWork) -> Floats:
    """Return the likelihood of a step start at each activity (0 to 1): after parameter updates, or after a pause."""
    busy_until = np.r_[work.start_ns[0], np.maximum.accumulate(work.end_ns)[:-1]]
    pause = np.maximum(work.start_ns - busy_until, 0)
    rank = np.argsort(np.argsort(pause, kind="stable"), kind="stable") / len(pause)
    return np.where(work.after_update(), 1.0, 0.5 * rank)
