"""Stream waits: device work that waits for work on another stream.

CUDA orders two streams with an event: the host records it after some work of one stream and makes another stream wait
for it (`cudaStreamWaitEvent`). Traces record the call but rarely its streams (if they do, see `recorded_waits`), so
three rules infer the dependencies:

  1. Only work whose launch follows a wait call of its thread can wait. If a trace has no such calls, any work can.
  2. Work can wait only for work that was launched before it: the last launch of each other stream.
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

from usp_prof.columns.arrays import Flags, Ints
from usp_prof.columns.rows import (
    distinct,
    first_of_run,
    first_rows,
    group_codes,
    lookup,
    rows_by_code,
    rows_of,
    sorted_by,
    stacked_codes,
)
from usp_prof.replay.graph import NEVER, ROUNDING_NS, NodeKind
from usp_prof.replay.rank_nodes import RankNodes
from usp_prof.replay.recorded_waits import RecordedWaits
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
_WAIT_CALLS = ("cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent")


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
    """Communication after the compute launched before it; PyTorch always orders these."""


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
    called_at, has_calls = _wait_calls(tables, nodes, device, recorded)
    # A wait belongs to the launch that follows its call. Without wait calls in the trace, each launch may have one.
    is_with_call = called_at > NEVER if has_calls else _follows_other_stream(nodes, device, launched_at)
    with_call, with_call_at = device[is_with_call], (called_at if has_calls else launched_at[device])[is_with_call]
    late = device[nodes.start[device] - np.maximum(explained_at[device], NEVER // 2) > UNEXPLAINED_NS]
    if len(recorded.call):
        late = late[_is_of_graph(tables, nodes, late)]
    # Work that starts later than explained may also wait for what another thread launched after the wait call.
    target = np.concatenate([with_call, late])
    before = np.concatenate([with_call_at, launched_at[late]])
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
    return _judged(nodes, source, target, is_called, explained_at, launched_at)


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
    nodes: RankNodes, source: Ints, target: Ints, is_called: Flags, explained_at: Ints, launched_at: Ints
) -> Candidates:
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
    is_issue = (nodes.kind[target] == NodeKind.COMMUNICATION) & (nodes.kind[source] == NodeKind.COMPUTE)
    kind = _kinds(nodes, source, target)
    return Candidates(source, target, kind, _in_place(nodes, kind, target), holds, decides, is_called, is_issue)


def _kinds(nodes: RankNodes, source: Ints, target: Ints) -> tuple[Ints, list[str]]:
    """Return codes and names of the kind of each pair.

    Communication is classified by axis and name, other work by stream. Waiting work is also classified by name.
    """
    if not len(source):
        return source, []
    name, (of_source, of_target) = nodes.name[0], (_class(nodes, rows) for rows in (source, target))
    sent = np.where(nodes.kind[source] == NodeKind.COMMUNICATION, name[source], -1)
    pair = group_codes(*of_source, sent, *of_target, name[target])
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


def _class(nodes: RankNodes, rows: Ints) -> tuple[Ints, Ints, Ints]:
    """Return kind, axis and stream of some work; communication is classified without its stream."""
    kind = nodes.kind[rows]
    return kind, nodes.axis[0][rows], np.where(kind == NodeKind.COMMUNICATION, -1, nodes.lane[rows])


def _word(nodes: RankNodes, node: int) -> str:
    if nodes.kind[node] == NodeKind.COMMUNICATION:
        axis = nodes.axis[1][nodes.axis[0][node]] if nodes.axis[0][node] >= 0 else ""
        return f"{axis} {nodes.name[1][nodes.name[0][node]]}"
    return f"{NodeKind(int(nodes.kind[node])).name} {nodes.lane_names[nodes.lane[node]]}"


def _is_of_graph(tables: TableSet, nodes: RankNodes, work: Ints) -> Flags:
    """Return whether each piece of work was launched as part of a CUDA graph."""
    launches = tables.columns("launches", nodes.rank)
    return lookup(
        launches.matches("kind", "graph_launch"), rows_of(launches["event"], nodes.launch[work]), missing=False
    )


def _wait_calls(tables: TableSet, nodes: RankNodes, device: Ints, recorded: RecordedWaits) -> tuple[Ints, bool]:
    """Return the time of the last wait call between each node's launch and the previous launch of its thread.

    The time is NEVER if there is no such call; calls whose wait is recorded do not count. Also return whether the trace
    has any wait calls.
    """
    launches = tables.columns("launches", nodes.rank)
    is_wait = launches.matches("name", *_WAIT_CALLS)
    called_at = np.full(len(device), NEVER)
    if not is_wait.any():
        return called_at, False
    is_wait &= ~np.isin(launches["event"], recorded.call)
    thread, shift = launches.codes("thread")[0], nodes.host_shift
    row_of_node = rows_of(launches["event"], nodes.launch[device])
    wait_of_row = np.full(len(launches), NEVER)
    for calls in rows_by_code(thread).values():
        calls = sorted_by(launches["start_ns"], calls)  # noqa: PLW2901
        starts_work, waits = launches["kernels"][calls] > 0, is_wait[calls]
        # By call: index of the last launch and of the last wait up to it.
        place = np.arange(len(calls))
        last_wait = np.maximum.accumulate(np.where(waits, place, -1))
        last_launch = np.maximum.accumulate(np.where(starts_work, place, -1))
        before = np.append(-1, last_launch[:-1])
        has_wait = starts_work & (last_wait > before)
        wait_of_row[calls[has_wait]] = launches["start_ns"][calls[last_wait[has_wait]]] + shift
    return lookup(wait_of_row, row_of_node, missing=NEVER), True


def accepted(of_ranks: Sequence[Candidates]) -> list[tuple[Ints, Ints]]:
    """Return for each rank the pairs that are dependencies, based on all ranks together.

    A pair is accepted by the third rule of the module, or if the timing of that single case decides.
    """
    if not sum(len(pairs.source) for pairs in of_ranks):
        return [(pairs.source, pairs.target) for pairs in of_ranks]
    holds, decides, called, issue = (
        np.concatenate([getattr(pairs, name) for pairs in of_ranks])
        for name in ("holds", "decides", "is_called", "is_issue")
    )
    is_rule = np.zeros(len(holds), bool)
    for kind, texts in (
        stacked_codes(pairs.kind for pairs in of_ranks),
        stacked_codes(pairs.kind_in_place for pairs in of_ranks),
    ):
        cases = np.bincount(kind[called], minlength=len(texts))
        share = np.bincount(kind[called], holds[called], len(texts)) / np.maximum(cases, 1)
        has_decided = np.bincount(kind, decides | (issue & called), len(texts)) > 0
        is_rule |= ((share >= NEARLY_ALWAYS) & has_decided)[kind]
    is_dependency = (holds & called & is_rule) | decides
    dependencies, low = [], 0
    for pairs in of_ranks:
        chosen = is_dependency[low : low + len(pairs.source)]
        dependencies.append((pairs.source[chosen], pairs.target[chosen]))
        low += len(pairs.source)
    return dependencies
