"""Stream waits: device work that waits for work on another stream.

CUDA orders two streams with an event: the host records it after some work of one stream and makes another stream wait
for it (`cudaStreamWaitEvent`). Traces record the call but rarely its streams (if they do, see `recorded_waits`), so
three rules infer the dependencies:

  1. Only work whose launch follows a wait call of its thread can wait. If a trace has no such calls, any work can.
  2. Work can wait only for work that was launched before the last event was recorded (`cudaEventRecord`): the last
     launch of each other stream by then.
  3. A pair of kinds (for example, compute after an all-reduce of `tp`) is a dependency if it holds in nearly every
     case, on all ranks, and decided the start of the waiting work at least once. Occasional coincidences do not count.
     If it does not hold everywhere, it may still hold after the same work of its own stream: the first lookup of a
     step waits for its input, the second one for an exchange.

In addition, work that starts just when other work ends waited for it in that one case. A start decides only if it is
later than the stream and the launch explain, because other work often ends by chance within the latency of a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import (
    distinct,
    first_of_run,
    first_rows,
    group_codes,
    sorted_by,
    stacked_codes,
)
from usp_prof.replay.graph import NEVER, ROUNDING_NS, NodeKind
from usp_prof.replay.rank_nodes import RankNodes
from usp_prof.replay.recorded_waits import RecordedWaits
from usp_prof.replay.wait_calls import is_of_graph, issuing_lanes, wait_calls
from usp_prof.tables.table_set import TableSet

NEARLY_ALWAYS = 0.9
"""A dependency holds in at least this share of its cases; the rest are timestamp errors."""
PROMPT_NS = 20_000
"""Work that waited for another stream starts within this time; an event takes some microseconds to arrive."""
PROMPT_SHARE = 0.01
"""After a long wait it may start later, up to this share of the wait: chance alone would do so in 1 of 100 cases."""
UNEXPLAINED_NS = 3_000
"""A gap up to this is normal between two kernels of a stream."""
MOST_LATENCY_NS = 100_000
"""A launch reaches an idle device within tens of microseconds; any time beyond this was spent waiting."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Pairs of work on two streams of one rank whose second activity may wait for the first."""

    source: Ints
    target: Ints
    kind: tuple[Ints, list[str]]
    """Kind of each pair, as codes and texts."""
    kind_in_place: tuple[Ints, list[str]]
    """The same together with the work that runs before the second on its stream."""
    holds: Flags
    """The second started after the first had ended."""
    decides: Flags
    """The second started when the first ended, and too late for anything else to explain its start."""
    is_called: Flags
    """The host made a wait call before the launch of the second, or may have if the trace has no such calls."""
    is_issue: Flags
    """Communication after the last work of the stream that issues it; PyTorch always orders these."""
    is_marked: Flags
    """The last event before the wait call marks the end of the first."""
    is_single: Flags
    """There is one wait call before the launch of the second, so that it waits for one event."""


def candidates(
    tables: TableSet, nodes: RankNodes, explained_at: Ints, launched_at: Ints, recorded: RecordedWaits
) -> Candidates:
    """Return the candidate pairs of one rank; `explained_at` is when stream and launch allowed each node to start.

    Work whose launch is not in the trace was launched before it, so other work can wait for it. Nothing is inferred for
    calls whose wait is `recorded`. If a trace names its waits, work that starts late is a candidate only if it was
    launched before the recording or belongs to a CUDA graph: the waits inside of a graph are not recorded.
    """
    device = np.flatnonzero(nodes.of_device & (launched_at > NEVER))
    sources = np.flatnonzero(nodes.of_device)
    calls = wait_calls(tables, nodes, device, recorded)
    # A wait belongs to the launch that follows its call. Without wait calls in the trace, each launch may have one.
    recorded_by = calls.recorded_by if calls.in_trace else launched_at
    with_call = device[
        recorded_by[device] > NEVER if calls.in_trace else _follows_other_stream(nodes, device, launched_at)
    ]
    late = device[nodes.start[device] - np.maximum(explained_at[device], NEVER // 2) > UNEXPLAINED_NS]
    if len(recorded.call):
        late = late[is_of_graph(tables, nodes, late)]
    # Work that starts later than explained may also wait for what another thread launched after the wait call.
    target = np.concatenate([with_call, late])
    before = np.concatenate([recorded_by[with_call], launched_at[late]])
    called = np.concatenate([np.ones(len(with_call), bool), np.zeros(len(late), bool)])
    nothing = np.zeros(0, np.int64)
    pairs = [(nothing, nothing, called[:0])]
    for lane in distinct(nodes.lane[sources]).tolist():
        of_lane = sorted_by(launched_at, sources[nodes.lane[sources] == lane])
        place = np.searchsorted(launched_at[of_lane], before, side="right") - 1  # at equal times, the call came later
        chosen = np.flatnonzero((place >= 0) & (nodes.lane[target] != lane))
        last = of_lane[place[chosen]]
        pairs.append((last, chosen, called[chosen]))
        # If the last launch cannot be the source (a prefetched gather), use the last one that had ended.
        late_row = chosen[nodes.end[last] > nodes.start[target[chosen]] + ROUNDING_NS]
        ended = (
            np.minimum(
                np.searchsorted(nodes.end[of_lane], nodes.start[target[late_row]] + ROUNDING_NS, side="right"),
                place[late_row],
            )
            - 1
        )
        has_ended = ended >= 0
        pairs.append((of_lane[ended[has_ended]], late_row[has_ended], np.zeros(int(has_ended.sum()), bool)))
    source, row, is_called = (np.concatenate(column) for column in zip(*pairs, strict=True))
    queued = _queued_pairs(nodes, explained_at, launched_at)
    source, target = np.append(source, queued[0]), np.append(target[row], queued[1])
    is_called = np.append(is_called, np.zeros(len(queued[0]), bool))
    issuing = issuing_lanes(tables, nodes, device, launched_at)
    is_issue = (nodes.kind[target] == NodeKind.COMMUNICATION) & (nodes.kind[source] == NodeKind.COMPUTE)
    is_issue &= is_called & ((issuing[target] == nodes.lane[source]) | (issuing[target] < 0))
    is_marked = is_called & (calls.marked[target] == source)
    of_calls = (is_called, is_issue, is_marked, calls.is_single[target])
    return _judged(nodes, (source, target), of_calls, explained_at, launched_at)


def _queued_pairs(nodes: RankNodes, explained_at: Ints, launched_at: Ints) -> tuple[Ints, Ints]:
    """Return pairs of work launched before the recording: late work, and what ended last on each other stream by then.

    The order of their launches is unknown.
    """
    queued = np.flatnonzero(nodes.of_device & (launched_at <= NEVER))
    late = queued[nodes.start[queued] - np.maximum(explained_at[queued], NEVER // 2) > UNEXPLAINED_NS]
    late = late[~nodes.first_of_lane[late]]
    sources, targets = [late[:0]], [late[:0]]
    for lane in distinct(nodes.lane[queued]).tolist():
        of_lane = queued[nodes.lane[queued] == lane]
        place = np.searchsorted(nodes.end[of_lane], nodes.start[late] + ROUNDING_NS, side="right") - 1
        chosen = (place >= 0) & (nodes.lane[late] != lane)
        sources.append(of_lane[place[chosen]])
        targets.append(late[chosen])
    return np.concatenate(sources), np.concatenate(targets)


def _follows_other_stream(nodes: RankNodes, device: Ints, launched_at: Ints) -> Flags:
    """Mark work launched right after work of another stream, which may wait for it if the trace has no wait calls."""
    by_launch = np.argsort(launched_at[device], kind="stable")
    follows = np.empty(len(device), bool)
    follows[by_launch] = first_of_run(nodes.lane[device][by_launch])
    return np.asarray(follows | (nodes.kind[device] == NodeKind.COMMUNICATION))


def _judged(
    nodes: RankNodes,
    pairs: tuple[Ints, Ints],
    calls: tuple[Flags, Flags, Flags, Flags],
    explained_at: Ints,
    launched_at: Ints,
) -> Candidates:
    """Return pairs of source and target as candidates; `calls` has the last four columns."""
    source, target = pairs
    holds = nodes.end[source] <= nodes.start[target] + ROUNDING_NS
    since = nodes.start[target] - nodes.end[source]
    unexplained_ns = nodes.start[target] - np.maximum(explained_at[target], NEVER // 2)
    is_prompt = since <= np.maximum(PROMPT_NS, PROMPT_SHARE * unexplained_ns)
    decides = holds & (nodes.end[source] > explained_at[target] + UNEXPLAINED_NS) & is_prompt
    # If several activities ended just before, the last one was waited for.
    last_end = np.full(len(nodes.lane), NEVER)
    np.maximum.at(last_end, target[decides], nodes.end[source[decides]])
    decides &= nodes.end[source] == last_end[target]
    latest = np.maximum(explained_at[target] + PROMPT_NS, launched_at[target] + MOST_LATENCY_NS)
    decides &= nodes.start[target] > latest
    kind = _kinds(nodes, source, target)
    return Candidates(source, target, kind, _in_place(nodes, kind, target), holds, decides, *calls)


def _kinds(nodes: RankNodes, source: Ints, target: Ints) -> tuple[Ints, list[str]]:
    """Return codes and names of the kind of each pair.

    Communication is classified by axis and name, other work by stream. Waiting work is also classified by name.
    """
    if not len(source):
        return source, []
    name, is_communication = nodes.name[0], nodes.kind == NodeKind.COMMUNICATION
    # Classes of all nodes: they are in more pairs than there are nodes.
    work = group_codes(nodes.kind, nodes.axis[0], np.where(is_communication, -1, nodes.lane))
    awaited, waiting = group_codes(work, np.where(is_communication, name, -1)), group_codes(work, name)
    pair = group_codes(awaited[source], waiting[target])
    texts = []
    for row in first_rows(pair).tolist():
        before, behind = int(source[row]), int(target[row])
        texts.append(f"{_word(nodes, before)} > {_word(nodes, behind)} {nodes.name[1][name[behind]]}")
    return pair, texts


def _in_place(nodes: RankNodes, kind: tuple[Ints, list[str]], target: Ints) -> tuple[Ints, list[str]]:
    """Return codes and names of each pair's kind together with the work before the second on its stream."""
    if not len(target):
        return kind
    (code, texts), (name, names) = kind, nodes.name
    before = np.where(nodes.first_of_lane[target], -1, name[target - 1])
    place = group_codes(code, before)
    rows = first_rows(place).tolist()
    return place, [f"{texts[code[row]]} after {names[before[row]] if before[row] >= 0 else ''}" for row in rows]


def _word(nodes: RankNodes, node: int) -> str:
    if nodes.kind[node] == NodeKind.COMMUNICATION:
        axis = nodes.axis[1][nodes.axis[0][node]] if nodes.axis[0][node] >= 0 else ""
        return f"{axis} {nodes.name[1][nodes.name[0][node]]}"
    return f"{NodeKind(int(nodes.kind[node])).name} {nodes.lane_names[nodes.lane[node]]}"


def accepted(of_ranks: Sequence[Candidates]) -> list[tuple[Ints, Ints]]:
    """Return for each rank the pairs that are dependencies, based on all ranks together.

    A pair is accepted by the third rule of the module, or if the timing of that single case decides. If that explains
    no wait of some work after a wait call, the work waits for what the event before the call marks. After a single wait
    call, it then waits for nothing else, unless its timing decides.
    """
    if not sum(len(pairs.source) for pairs in of_ranks):
        return [(pairs.source, pairs.target) for pairs in of_ranks]
    holds, decides, called, issue, marked, single = (
        np.concatenate([getattr(pairs, name) for pairs in of_ranks])
        for name in ("holds", "decides", "is_called", "is_issue", "is_marked", "is_single")
    )
    kinds = stacked_codes(pairs.kind for pairs in of_ranks)
    is_rule = np.zeros(len(holds), bool)
    for kind, texts in (kinds, stacked_codes(pairs.kind_in_place for pairs in of_ranks)):
        has_decided = np.bincount(kind, decides | issue, len(texts)) > 0
        is_rule |= (_share(kind, len(texts), holds, called) >= NEARLY_ALWAYS)[kind] & has_decided[kind]
    # Targets of all ranks, numbered one after another.
    first = np.cumsum([0, *(int(pairs.target.max(initial=-1)) + 1 for pairs in of_ranks)])
    target = np.concatenate([pairs.target + low for pairs, low in zip(of_ranks, first[:-1], strict=True)])
    kind, texts = kinds
    is_of_event = holds & marked & (_share(kind, len(texts), holds, marked) >= NEARLY_ALWAYS)[kind]
    waits_for_other = np.isin(target, target[is_of_event & single]) & ~marked & ~issue
    is_dependency = (holds & called & is_rule & ~waits_for_other) | decides
    is_unexplained = ~np.isin(target, target[is_dependency])
    is_dependency |= is_of_event & is_unexplained
    ends = np.cumsum([len(pairs.source) for pairs in of_ranks])[:-1]
    return [
        (pairs.source[chosen], pairs.target[chosen])
        for pairs, chosen in zip(of_ranks, np.split(is_dependency, ends), strict=True)
    ]


def _share(kind: Ints, kinds: int, holds: Flags, of_pairs: Flags) -> Floats:
    """Return for each kind the share of these pairs in which the second started after the first had ended."""
    cases = np.bincount(kind[of_pairs], minlength=kinds)
    return np.asarray(np.bincount(kind[of_pairs], holds[of_pairs], kinds) / np.maximum(cases, 1))
