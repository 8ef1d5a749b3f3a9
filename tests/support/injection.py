"""Injection: real GPU traces with an added delay of known size, propagated by a small separate simulator.

The simulator is independent of the product's replay graph. It has five rules, based on guarantees of CUDA and NCCL:

  host        calls of a rank's launching threads run one after the other; the time between two calls is the host's own
  blocking    a sync, or a copy of pageable memory, returns when the work it waits for has ended
  queue       (if asked for) a stream holds a limited number of launches that have not started; while it is full, the
              next launch returns only when the oldest of them starts
  device      work starts when it was launched, its stream is free, and the communication it waits for has ended
  collective  all participants end a fixed time after the last of them has started

A delay makes some calls later; everything else is recomputed. Removing the delay then gives exactly the original run,
so a prediction of the repair has a known answer.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from usp_prof.replay.step_times import StepTimes

Event = dict[str, Any]

HOST_CATEGORIES = ("cuda_runtime", "cuda_driver")
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
BLOCKING = re.compile(r"Synchronize")
COMMUNICATION = re.compile(r"nccl", re.IGNORECASE)
PAGEABLE = re.compile(r"Pageable")
STAGED_BYTES = 65_536
PROMPT_US, UNEXPLAINED_US, QUICK_US = 20.0, 10.0, 2.0


@dataclass(frozen=True, slots=True)
class Delay:
    """Injected delay: `kind` is pause, slow_host, slow_kernels, late_input or late_sends."""

    kind: str
    rank: int
    size: float
    """Microseconds per step for pause, late_input and late_sends, else a factor."""
    fills_queue: bool = False
    """Whether streams hold no more launches than they do in the recording, so that hosts that run ahead must wait."""


@dataclass(slots=True)
class Call:
    """One host call, with its launches and waits."""

    event: Event
    start: float
    end: float
    launched: list[Work] = field(default_factory=list)
    waited_for: Work | None = None
    new_start: float = 0.0
    new_end: float = 0.0


@dataclass(slots=True)
class Work:
    """One piece of device work."""

    event: Event
    start: float
    end: float
    call: Call | None = None
    before: list[Work] = field(default_factory=list)
    """Work that must end first: the stream's previous work, and what another stream holds."""
    instance: tuple[Any, ...] | None = None
    new_start: float = 0.0
    new_end: float = 0.0

    @property
    def communicates(self) -> bool:
        return bool(COMMUNICATION.search(self.event["name"]))


@dataclass(slots=True)
class RankTrace:
    """One rank's trace as calls and work; times are microseconds."""

    path: Path
    rank: int
    trace: dict[str, Any]
    calls: list[Call]
    work: list[Work]


def read_run(paths: list[Path]) -> list[RankTrace]:
    """Read all ranks and match their collectives by order within each kind."""
    ranks = [_read(path) for path in paths]
    counts: dict[tuple[int, str], int] = defaultdict(int)
    for rank in ranks:
        for work in sorted((work for work in rank.work if work.communicates and work.call), key=lambda w: w.call.start):
            name = re.sub(r"[_(<].*", "", work.event["name"].replace("ncclKernel_", "ncclDevKernel_"))
            kind = f"{name} {work.event['args'].get('Process Group Name', '')} {_collective_name(work.event['name'])}"
            work.instance = (kind, counts[rank.rank, kind])
            counts[rank.rank, kind] += 1
    members = defaultdict(set)
    for (_, kind), count in counts.items():
        members[kind].add(count)
    for rank in ranks:  # kinds with different numbers of calls per rank are not changed
        for work in rank.work:
            if work.instance and len(members[work.instance[0]]) > 1:
                work.instance = None
    return ranks


def _collective_name(name: str) -> str:
    match = re.search(r"AllReduce|AllGather|ReduceScatter|SendRecv|Broadcast|AllToAll|Reduce", name, re.IGNORECASE)
    return match.group(0).lower() if match else ""


def _read(path: Path) -> RankTrace:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    rank = int(trace["distributedInfo"]["rank"])
    host, device = [], []
    for event in trace["traceEvents"]:
        if event.get("ph") != "X":
            continue
        if event.get("cat") in HOST_CATEGORIES:
            host.append(event)
        elif event.get("cat") in DEVICE_CATEGORIES:
            device.append(event)
    correlations = {event["args"].get("correlation") for event in device}
    threads = {event["tid"] for event in host if event["args"].get("correlation") in correlations}
    calls = [
        Call(event, event["ts"], event["ts"] + event["dur"])
        for event in sorted(host, key=lambda event: event["ts"])
        if event["tid"] in threads
        and (event["args"].get("correlation") in correlations or BLOCKING.search(event["name"]))
    ]
    call_of = {call.event["args"]["correlation"]: call for call in calls}
    work = []
    for event in sorted(device, key=lambda event: event["ts"]):
        call = call_of.get(event["args"].get("correlation"))
        work.append(Work(event, event["ts"], event["ts"] + event["dur"], call))
        if call:
            call.launched.append(work[-1])
    _order_streams(work)
    _order_across_streams(work)
    _order_where_prompt(work)
    _find_awaited(calls, work)
    return RankTrace(path, rank, trace, calls, work)


def _order_streams(work: list[Work]) -> None:
    last: dict[Any, Work] = {}
    for piece in work:
        stream = piece.event["args"].get("stream")
        if stream in last:
            piece.before.append(last[stream])
        last[stream] = piece


def _order_across_streams(work: list[Work]) -> None:
    """Order communication after the compute launched before it, and compute after what it always waits for."""
    launched = sorted((piece for piece in work if piece.call), key=lambda piece: piece.call.start)
    pairs: dict[str, list[tuple[Work, Work]]] = defaultdict(list)
    compute: Work | None = None
    open_calls: list[Work] = []
    for piece in launched:
        if piece.communicates:
            if compute is not None and compute.end <= piece.start:
                piece.before.append(compute)
            open_calls.append(piece)
        elif piece.event["cat"] == "kernel":
            for communication in open_calls:
                pairs[communication.event["name"]].append((communication, piece))
            open_calls = []
            compute = piece
    for of_kind in pairs.values():
        if all(piece.start >= communication.end for communication, piece in of_kind):
            for communication, piece in of_kind:
                piece.before.append(communication)


def _order_where_prompt(work: list[Work]) -> None:
    """Make work wait for other streams' work that ended right before it started, if nothing else explains its start."""
    by_end = sorted(work, key=lambda piece: piece.end)
    ends = [piece.end for piece in by_end]
    for piece in work:
        limits = [before.end for before in piece.before] + ([piece.call.start] if piece.call else [])
        if not piece.call or piece.start - max(limits) <= UNEXPLAINED_US:
            continue
        ended = by_end[bisect_right(ends, piece.start) - 1]
        if ended.end <= max(limits) or piece.start - ended.end > PROMPT_US:
            continue
        if ended.call and ended.call.start < piece.call.start:
            piece.before.append(ended)


def _find_awaited(calls: list[Call], work: list[Work]) -> None:
    """Return for each blocking call the last work that ended within it, or if none did, the last work launched."""
    last: Work | None = None
    for call in calls:
        own = call.launched
        if own and _is_blocking_copy(own[-1].event) and own[-1].end <= call.end:
            call.waited_for = own[-1]
        elif BLOCKING.search(call.event["name"]) and last is not None:
            ended = [
                piece
                for piece in work
                if piece.call and piece.call.start < call.start and call.start < piece.end <= call.end
            ]
            call.waited_for = max(ended, key=lambda piece: piece.end) if ended else last
        if own:
            last = own[-1]


def _is_blocking_copy(event: Event) -> bool:
    """Return whether a copy blocks its call: with pageable memory, except for small copies to the device."""
    if not PAGEABLE.search(event["name"]):
        return False
    return "DtoH" in event["name"] or event["args"].get("bytes", 0) > STAGED_BYTES


def simulate(ranks: list[RankTrace], delay: Delay | None) -> None:
    """Compute new times of all calls and work with an injected delay; without one, the original times."""
    added = {id(call): 0.0 for rank in ranks for call in rank.calls}
    scale = defaultdict(lambda: 1.0)
    for rank in ranks:
        if delay is not None and rank.rank == delay.rank:
            added.update(_time_added(rank, delay))
            if delay.kind == "slow_kernels":
                slow = (work for work in rank.work if work.event["cat"] == "kernel" and not work.communicates)
                scale.update((id(work), delay.size) for work in slow)
    limits = _queue_limits(ranks) if delay is not None and delay.fills_queue else {}
    _propagate(ranks, added, scale, limits)


def _time_added(rank: RankTrace, delay: Delay) -> dict[int, float]:
    """Return the host time that the delay adds before calls."""
    if delay.kind in ("pause", "late_input"):
        return {id(call): delay.size for call in _delayed_calls(rank, in_middle=delay.kind == "pause")}
    if delay.kind == "slow_host":
        pairs = zip(rank.calls, rank.calls[1:], strict=False)
        return {id(call): max(0.0, call.start - before.end) * (delay.size - 1) for before, call in pairs}
    added = {}
    if delay.kind == "late_sends":
        for calls in _calls_of_steps(rank):
            sends = [call for call in calls if any(work.communicates for work in call.launched)]
            added |= {id(call): delay.size / len(sends) for call in sends}
    return added


def true_gain(original: StepTimes, delayed: StepTimes) -> float:
    """Return the share of the delayed run's mean step that the delay costs, over the steps that count in that run."""
    counts = delayed.is_complete
    of_step = dict(
        zip(
            zip(original.rank.tolist(), original.step.tolist(), strict=True), original.measured_ns.tolist(), strict=True
        )
    )
    same = [of_step[place] for place in zip(delayed.rank[counts].tolist(), delayed.step[counts].tolist(), strict=True)]
    return 1 - sum(same) / float(delayed.measured_ns[counts].sum())


def _delayed_calls(rank: RankTrace, *, in_middle: bool) -> list[Call]:
    chosen = []
    # A delay of the first launch precedes the recording, so its step does not include it.
    for calls in _calls_of_steps(rank)[0 if in_middle else 1 :]:
        launches = [call for call in calls if call.launched]
        if launches:
            chosen.append(launches[len(launches) // 2] if in_middle else launches[0])
    return chosen


def _calls_of_steps(rank: RankTrace) -> list[list[Call]]:
    marks = sorted(
        (event for event in rank.trace["traceEvents"] if str(event.get("name", "")).startswith("ProfilerStep#")
         and event.get("cat") == "user_annotation"),
        key=lambda event: event["ts"],
    )  # fmt: skip
    return [[call for call in rank.calls if mark["ts"] <= call.start < mark["ts"] + mark["dur"]] for mark in marks]


def _queue_limits(ranks: list[RankTrace]) -> dict[int, Work]:
    """Return by call the work that must have started before it returns, with queues as deep as in the recording."""
    streams: list[list[Call]] = []
    for rank in ranks:
        of_stream: dict[Any, list[Call]] = defaultdict(list)
        for call in rank.calls:
            if call.launched:
                of_stream[call.launched[-1].event["args"].get("stream")].append(call)
        streams += of_stream.values()
    places = 0
    for calls in streams:
        started = sorted(call.launched[0].start for call in calls)
        pending = (number - bisect_right(started, call.end) for number, call in enumerate(calls))
        places = max(places, 1 + max(pending))
    return {id(call): calls[number].launched[-1] for calls in streams for number, call in enumerate(calls[places:])}


def _propagate(
    ranks: list[RankTrace], added: dict[int, float], scale: dict[int, float], limits: dict[int, Work]
) -> None:
    """Compute new times in order of dependencies."""
    members: dict[Any, list[Work]] = defaultdict(list)
    for rank in ranks:
        for work in rank.work:
            if work.instance:
                members[work.instance].append(work)
    for kind, item in _topological(_needs(ranks, members, limits)):
        if kind == "call begins":
            call, previous = item
            call.new_start = call.start if previous is None else previous.new_end + call.start - previous.end
            call.new_start += added[id(call)]
        elif kind == "call ends":
            item.new_end = _returned(item, limits.get(id(item)))
        elif kind == "work begins":
            item.new_start = _begun(item)
        else:
            item.new_end = _ended(item, members[item.instance] if item.instance else [], scale[id(item)])


Moments = dict[tuple[int, str], tuple[tuple[str, Any], list[tuple[int, str]]]]
"""By moment (of a call or of work, its begin or end): what it is, and the moments that come before it."""


def _needs(ranks: list[RankTrace], members: dict[Any, list[Work]], limits: dict[int, Work]) -> Moments:
    moments: Moments = {}
    for rank in ranks:
        previous: Call | None = None
        for call in rank.calls:
            begin, end = (id(call), "begin"), (id(call), "end")
            moments[begin] = (("call begins", (call, previous)), [(id(previous), "end")] if previous else [])
            awaited = [(id(call.waited_for), "end")] if call.waited_for else []
            freed = [(id(limits[id(call)]), "begin")] if id(call) in limits else []
            moments[end] = (("call ends", call), [begin, *awaited, *freed])
            previous = call
        for work in rank.work:
            launched = [(id(work.call), "begin")] if work.call else []
            begin = (id(work), "begin")
            moments[begin] = (("work begins", work), [*launched, *((id(before), "end") for before in work.before)])
            entered = [(id(other), "begin") for other in members[work.instance]] if work.instance else [begin]
            moments[(id(work), "end")] = (("work ends", work), entered)
    return moments


def _returned(call: Call, limit: Work | None) -> float:
    if limit is not None:
        return max(_returned(call, None), limit.new_start + min(call.end - limit.start, QUICK_US))
    awaited = call.waited_for
    if awaited is None:
        return call.new_start + call.end - call.start
    if call.start < awaited.end <= call.end:  # it waited
        own = min(call.end - call.start, 10.0)
        return max(call.new_start + own, awaited.new_end + call.end - awaited.end)
    return max(call.new_start + call.end - call.start, awaited.new_end + min(0.0, call.end - awaited.end))


def _begun(work: Work) -> float:
    """Shift by the dependency that was last in the recording; another one may now be last, without a lag."""
    arrivals = [(before.end, before.new_end) for before in work.before]
    if work.call:
        latency = min(5.0, work.start - work.call.start)
        arrivals.append((work.call.start + latency, work.call.new_start + latency))
    if not arrivals:
        return work.start
    last = max(then for then, _ in arrivals)
    lag = work.start - last
    return max(now + (lag if then == last else min(lag, 0.0)) for then, now in arrivals)


def _ended(work: Work, members: list[Work], scale: float) -> float:
    if len(members) < 2:
        return work.new_start + (work.end - work.start) * scale
    last, new_last = max(member.start for member in members), max(member.new_start for member in members)
    return max(new_last + work.end - last, work.new_start)


def _topological(moments: Moments) -> list[tuple[str, Any]]:
    waiting = {key: len(needs) for key, (_, needs) in moments.items()}
    behind: dict[tuple[int, str], list[tuple[int, str]]] = defaultdict(list)
    for key, (_, needs) in moments.items():
        for need in needs:
            behind[need].append(key)
    ready = deque(key for key, count in waiting.items() if not count)
    order = []
    while ready:
        key = ready.popleft()
        order.append(moments[key][0])
        for following in behind[key]:
            waiting[following] -= 1
            if not waiting[following]:
                ready.append(following)
    if len(order) != len(moments):
        raise ValueError("the dependencies of the run form a circle")
    return order


def write_run(ranks: list[RankTrace], folder: Path) -> None:
    """Write the traces with the new times; host time between two calls is stretched accordingly."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        new_of = {id(work.event): (work.new_start, work.new_end) for work in rank.work}
        new_of |= {id(call.event): (call.new_start, call.new_end) for call in rank.calls}
        warp = Warp(rank.calls)
        events = []
        for event in rank.trace["traceEvents"]:
            if event.get("cat") in ("ac2g", "gpu_user_annotation"):
                continue
            moved = dict(event)
            if id(event) in new_of:
                begin, end = new_of[id(event)]
                moved["ts"], moved["dur"] = round(begin, 3), round(end - begin, 3)
            elif event.get("ph") == "X" and "dur" in event:
                begin, end = warp(event["ts"]), warp(event["ts"] + event["dur"])
                moved["ts"], moved["dur"] = round(begin, 3), round(end - begin, 3)
            elif "ts" in event and event.get("ph") != "M":
                moved["ts"] = round(warp(event["ts"]), 3)
            events.append(moved)
        with gzip.open(folder / f"rank{rank.rank}.json.gz", "wt", compresslevel=1, encoding="utf-8") as file:
            json.dump({**rank.trace, "traceEvents": events}, file)


class Warp:
    """Host time of the original run to host time of the delayed one, linear between calls."""

    def __init__(self, calls: list[Call]) -> None:
        knots: list[tuple[float, float]] = []
        for call in calls:
            for old, new in ((call.start, call.new_start), (call.end, call.new_end)):
                if not knots or (old > knots[-1][0] and new >= knots[-1][1]):
                    knots.append((old, new))
        self.old = [old for old, _ in knots]
        self.new = [new for _, new in knots]

    def __call__(self, when: float) -> float:
        if not self.old:
            return when
        place = bisect_right(self.old, when)
        if place == 0:
            return when + self.new[0] - self.old[0]
        if place == len(self.old):
            return when + self.new[-1] - self.old[-1]
        low, high = place - 1, place
        share = (when - self.old[low]) / (self.old[high] - self.old[low])
        return self.new[low] + share * (self.new[high] - self.new[low])
