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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import first_of_run, first_rows, group_codes, rows_by_code, sorted_by, stacked_codes
from usp_prof.replay.graph import NEVER, ROUNDING_NS, NodeKind
from usp_prof.replay.rank_nodes import RankNodes
from usp_prof.replay.recorded_waits import RecordedWaits
from usp_prof.replay.wait_calls import WaitCalls, is_of_graph, issuing_lanes, wait_calls
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


MOST_LANES = 64
"""Work waits for at most this many streams of a rank, those with most work. Each makes one pair per waiting work."""


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


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingWork:
    """Work that may wait for another stream: one entry per piece in each array."""

    node: Ints
    before: Ints
    """It can wait only for work that was launched by then."""
    is_called: Flags
    """As in `Candidates`."""


def candidates(tables: TableSet, nodes: RankNodes, explained_at: Ints, recorded: RecordedWaits) -> Candidates:
    """Return the candidate pairs of one rank; `explained_at` is when stream and launch allowed each node to start.

    Work whose launch is not in the trace was launched before it, so other work can wait for it. Nothing is inferred for
    calls whose wait is `recorded`.
    """
    calls = wait_calls(tables, nodes, recorded)
    waiting = _waiting_work(tables, nodes, calls, explained_at, recorded)
    nothing = np.zeros(0, np.int64)
    pairs = [(nothing, nothing, np.zeros(0, bool))]
    device = np.flatnonzero(nodes.of_device)
    for lane, rows in _awaited_lanes(nodes.lane[device]).items():
        pairs += _pairs_with_lane(nodes, waiting, lane, sorted_by(nodes.launched_at, device[rows]))
    source, row, is_called = (np.concatenate(column) for column in zip(*pairs, strict=True))
    queued_source, queued_target = _queued_pairs(nodes, explained_at)
    source, target = np.append(source, queued_source), np.append(waiting.node[row], queued_target)
    is_called = np.append(is_called, np.zeros(len(queued_source), bool))
    issuing = issuing_lanes(tables, nodes)
    is_issue = (nodes.kind[target] == NodeKind.COMMUNICATION) & (nodes.kind[source] == NodeKind.COMPUTE)
    is_issue &= is_called & ((issuing[target] == nodes.lane[source]) | (issuing[target] < 0))
    kind = _kinds(nodes, source, target)
    holds, decides = _timing(nodes, source, target, explained_at)
    return Candidates(
        source=source,
        target=target,
        kind=kind,
        kind_in_place=_in_place(nodes, kind, target),
        holds=holds,
        decides=decides,
        is_called=is_called,
        is_issue=is_issue,
        is_marked=is_called & (calls.marked[target] == source),
        is_single=calls.is_single[target],
    )


def _waiting_work(
    tables: TableSet, nodes: RankNodes, calls: WaitCalls, explained_at: Ints, recorded: RecordedWaits
) -> _WaitingWork:
    """Return the work after wait calls, and work that starts later than explained.

    A wait belongs to the launch that follows its call. Without wait calls in the trace, each launch may have one. Work
    that starts later than explained may also wait for what another thread launched after the wait call. If the trace
    names its waits, only such work of a CUDA graph is a candidate: the waits inside of a graph are not recorded.
    """
    device, launched_at = nodes.launched_work, nodes.launched_at
    if calls.in_trace:
        recorded_by, with_call = calls.recorded_by, device[calls.recorded_by[device] > NEVER]
    else:
        recorded_by, with_call = launched_at, device[_follows_other_stream(nodes, device)]
    late = device[_unexplained_ns(nodes, explained_at, device) > UNEXPLAINED_NS]
    if len(recorded.call):
        late = late[is_of_graph(tables, nodes, late)]
    return _WaitingWork(
        node=np.append(with_call, late),
        before=np.append(recorded_by[with_call], launched_at[late]),
        is_called=np.append(np.ones(len(with_call), bool), np.zeros(len(late), bool)),
    )


def _unexplained_ns(nodes: RankNodes, explained_at: Ints, rows: Ints) -> Ints:
    """Return how long after its stream and its launch each node started; NEVER is limited, since it would overflow."""
    return nodes.start[rows] - np.maximum(explained_at[rows], NEVER // 2)


def _pairs_with_lane(
    nodes: RankNodes, waiting: _WaitingWork, lane: int, work: Ints
) -> Iterator[tuple[Ints, Ints, Flags]]:
    """Yield work on one lane (in launch order), the rows of the work that may wait for it, and `is_called`."""
    # At equal times, the launch came before the call.
    launched = np.searchsorted(nodes.launched_at[work], waiting.before, side="right")
    rows = np.flatnonzero((launched > 0) & (nodes.lane[waiting.node] != lane))
    last = work[launched[rows] - 1]
    yield last, rows, waiting.is_called[rows]
    # If the last launch cannot be the source (a prefetched gather), use the last one that had ended.
    latest_end = nodes.start[waiting.node[rows]] + ROUNDING_NS
    still_runs = nodes.end[last] > latest_end
    rows, latest_end = rows[still_runs], latest_end[still_runs]
    ended = np.minimum(np.searchsorted(nodes.end[work], latest_end, side="right"), launched[rows] - 1)
    has_ended = ended > 0
    yield work[ended[has_ended] - 1], rows[has_ended], np.zeros(int(has_ended.sum()), bool)


def _awaited_lanes(lane: Ints) -> dict[int, Ints]:
    """Return the rows of each lane that other work may wait for: all lanes, or the `MOST_LANES` with most rows."""
    rows_of_lane = rows_by_code(lane)
    busiest = sorted(rows_of_lane, key=lambda lane: len(rows_of_lane[lane]), reverse=True)[:MOST_LANES]
    return {lane: rows_of_lane[lane] for lane in sorted(busiest)}


def _queued_pairs(nodes: RankNodes, explained_at: Ints) -> tuple[Ints, Ints]:
    """Return pairs of work launched before the recording: late work, and what ended last on each other stream by then.

    The order of their launches is unknown.
    """
    queued = np.flatnonzero(nodes.of_device & (nodes.launched_at <= NEVER))
    late = queued[_unexplained_ns(nodes, explained_at, queued) > UNEXPLAINED_NS]
    late = late[~nodes.first_of_lane[late]]
    sources, targets = [late[:0]], [late[:0]]
    for lane, rows in _awaited_lanes(nodes.lane[queued]).items():
        work = queued[rows]
        ended = np.searchsorted(nodes.end[work], nodes.start[late] + ROUNDING_NS, side="right")
        may_wait = (ended > 0) & (nodes.lane[late] != lane)
        sources.append(work[ended[may_wait] - 1])
        targets.append(late[may_wait])
    return np.concatenate(sources), np.concatenate(targets)


def _follows_other_stream(nodes: RankNodes, device: Ints) -> Flags:
    """Mark work launched right after work of another stream, which may wait for it if the trace has no wait calls."""
    by_launch = np.argsort(nodes.launched_at[device], kind="stable")
    follows = np.empty(len(device), bool)
    follows[by_launch] = first_of_run(nodes.lane[device][by_launch])
    return np.asarray(follows | (nodes.kind[device] == NodeKind.COMMUNICATION))


def _timing(nodes: RankNodes, source: Ints, target: Ints, explained_at: Ints) -> tuple[Flags, Flags]:
    """Return the columns `holds` and `decides` of candidate pairs."""
    holds = nodes.end[source] <= nodes.start[target] + ROUNDING_NS
    since = nodes.start[target] - nodes.end[source]
    is_prompt = since <= np.maximum(PROMPT_NS, PROMPT_SHARE * _unexplained_ns(nodes, explained_at, target))
    decides = holds & (nodes.end[source] > explained_at[target] + UNEXPLAINED_NS) & is_prompt
    # If several activities ended just before, the last one was waited for.
    last_end = np.full(len(nodes.lane), NEVER)
    np.maximum.at(last_end, target[decides], nodes.end[source[decides]])
    decides &= nodes.end[source] == last_end[target]
    latest = np.maximum(explained_at[target] + PROMPT_NS, nodes.launched_at[target] + MOST_LATENCY_NS)
    return holds, decides & (nodes.start[target] > latest)


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
    rows = first_rows(pair)
    befores, behinds = source[rows], target[rows]
    word_of_awaited = _words(nodes, awaited[befores], befores)
    word_of_waiting = _words(nodes, waiting[behinds], behinds)
    names = nodes.name[1]
    return pair, [
        f"{word_of_awaited[before]} > {word_of_waiting[behind]} {names[name_code]}"
        for before, behind, name_code in zip(
            awaited[befores].tolist(), waiting[behinds].tolist(), name[behinds].tolist(), strict=True
        )
    ]


def _in_place(nodes: RankNodes, kind: tuple[Ints, list[str]], target: Ints) -> tuple[Ints, list[str]]:
    """Return codes and names of each pair's kind together with the work before the second on its stream."""
    if not len(target):
        return kind
    (code, texts), (name, names) = kind, nodes.name
    before = np.where(nodes.first_of_lane[target], -1, name[target - 1])
    place = group_codes(code, before)
    rows = first_rows(place).tolist()
    return place, [f"{texts[code[row]]} after {names[before[row]] if before[row] >= 0 else ''}" for row in rows]


def _words(nodes: RankNodes, work_class: Ints, node: Ints) -> dict[int, str]:
    """Return the word of each class of work, from one of its nodes."""
    rows = first_rows(group_codes(work_class))
    return {int(work_class[row]): _word(nodes, int(node[row])) for row in rows.tolist()}


def _word(nodes: RankNodes, node: int) -> str:
    if nodes.kind[node] == NodeKind.COMMUNICATION:
        axis = nodes.axis[1][nodes.axis[0][node]] if nodes.axis[0][node] >= 0 else ""
        return f"{axis} {nodes.name[1][nodes.name[0][node]]}"
    return f"{NodeKind(int(nodes.kind[node])).name} {nodes.lane_names[nodes.lane[node]]}"


def accepted(of_ranks: Sequence[Candidates]) -> list[tuple[Ints, Ints]]:
    """Return for each rank the pairs that are dependencies, based on all ranks together."""
    if not sum(len(pairs.source) for pairs in of_ranks):
        return [(pairs.source, pairs.target) for pairs in of_ranks]
    ends = np.cumsum([len(pairs.source) for pairs in of_ranks])[:-1]
    return [
        (pairs.source[is_dependency], pairs.target[is_dependency])
        for pairs, is_dependency in zip(of_ranks, np.split(_dependencies(_stacked(of_ranks)), ends), strict=True)
    ]


def _stacked(of_ranks: Sequence[Candidates]) -> Candidates:
    """Return the candidates of all ranks as those of one rank, with nodes numbered one rank after another."""
    nodes = [int(max(pairs.source.max(initial=-1), pairs.target.max(initial=-1))) + 1 for pairs in of_ranks]
    first_node = np.cumsum([0, *nodes[:-1]])
    return Candidates(
        source=np.concatenate([pairs.source + low for pairs, low in zip(of_ranks, first_node, strict=True)]),
        target=np.concatenate([pairs.target + low for pairs, low in zip(of_ranks, first_node, strict=True)]),
        kind=stacked_codes(pairs.kind for pairs in of_ranks),
        kind_in_place=stacked_codes(pairs.kind_in_place for pairs in of_ranks),
        holds=np.concatenate([pairs.holds for pairs in of_ranks]),
        decides=np.concatenate([pairs.decides for pairs in of_ranks]),
        is_called=np.concatenate([pairs.is_called for pairs in of_ranks]),
        is_issue=np.concatenate([pairs.is_issue for pairs in of_ranks]),
        is_marked=np.concatenate([pairs.is_marked for pairs in of_ranks]),
        is_single=np.concatenate([pairs.is_single for pairs in of_ranks]),
    )


def _dependencies(pairs: Candidates) -> Flags:
    """Mark the pairs that are dependencies.

    A pair is one by the third rule of the module, or if the timing of that single case decides. If that explains no
    wait of some work after a wait call, the work waits for what the event before the call marks. After a single wait
    call, it then waits for nothing else, unless its timing decides.
    """
    is_rule = np.zeros(len(pairs.source), bool)
    for kind, texts in (pairs.kind, pairs.kind_in_place):
        has_decided = np.bincount(kind, pairs.decides | pairs.is_issue, len(texts)) > 0
        nearly_always = _share(kind, len(texts), pairs.holds, pairs.is_called) >= NEARLY_ALWAYS
        is_rule |= (nearly_always & has_decided)[kind]
    kind, texts = pairs.kind
    nearly_always = _share(kind, len(texts), pairs.holds, pairs.is_marked) >= NEARLY_ALWAYS
    is_of_event = pairs.holds & pairs.is_marked & nearly_always[kind]
    waits_for_event = np.isin(pairs.target, pairs.target[is_of_event & pairs.is_single])
    waits_for_other = waits_for_event & ~pairs.is_marked & ~pairs.is_issue
    is_dependency = (pairs.holds & pairs.is_called & is_rule & ~waits_for_other) | pairs.decides
    is_unexplained = ~np.isin(pairs.target, pairs.target[is_dependency])
    return is_dependency | (is_of_event & is_unexplained)


def _share(kind: Ints, kinds: int, holds: Flags, of_pairs: Flags) -> Floats:
    """Return for each kind the share of these pairs in which the second started after the first had ended."""
    cases = np.bincount(kind[of_pairs], minlength=kinds)
    return np.asarray(np.bincount(kind[of_pairs], holds[of_pairs], kinds) / np.maximum(cases, 1))
