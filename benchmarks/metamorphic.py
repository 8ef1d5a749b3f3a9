"""Metamorphic predictions: changes of real traces that say nothing about the job may not change what is predicted.

    python benchmarks/metamorphic.py FOLDER [FOLDER ...]      each folder holds one run's traces, of at least two ranks
    python benchmarks/metamorphic.py FOLDER --page docs/reference/accuracy.md

Each run is rewritten with the device clock of one rank moved, host activity after the last kernel cut off or added, the
first or last step dropped, the kernels of a rank split, its timestamps rounded, ranks renamed, files permuted, and a
sleeping thread added. The repair of every rank, the step with all ranks alike, and the first finding are compared with
those of the run as recorded. Bar: gains change by no more than the stated error, and the first finding stays unless its
gain is within the error of another's.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from zlib import crc32

from harness import case_options, write_table

from usp_prof.contract import TRACE_METADATA_KEY
from usp_prof.findings.repairs import ideal_of
from usp_prof.findings.search import search
from usp_prof.model.edit import Edit
from usp_prof.model.errors import UspProfError
from usp_prof.run import open_run
from usp_prof.whatif.predict import predict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Event = dict[str, Any]
Traces = dict[int, dict[str, Any]]
"""By rank, the decoded trace."""

SHIFTS_US = (-200, -60, -20, 20, 60, 200)
TAIL_US = 50_000
JITTER_US = 0.25
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
STEP = re.compile(r"ProfilerStep#(\d+)$")
SPLIT_ONE_IN = 6
"""Share of kernel names whose kernels are split in two."""
BEGIN, END = "<!-- metamorphic: written by benchmarks/metamorphic.py -->", "<!-- end of metamorphic -->"


@dataclass(frozen=True, slots=True)
class Predictions:
    """What is predicted for a run."""

    repairs: dict[int, tuple[float, float]]
    """By rank: gain and stated error of making it perform like its peers."""
    ideal: float
    """Gain of the step with all ranks alike; NaN if it is withheld."""
    findings: tuple[tuple[str, int | None, float, float], ...]
    """Code, rank, gain and error of each cause, in order."""

    def gains(self, turned: dict[int, int]) -> dict[tuple[str, int | None], tuple[float, float]]:
        """Return gain and error of each repair and finding, under the ranks' new numbers.

        The first finding on a rank is compared whatever its code: late-rank and slow-rank name the same repair.
        """
        gains: dict[tuple[str, int | None], tuple[float, float]] = {}
        for code, rank, gain, error in self.findings:
            gains.setdefault((code, None) if rank is None else ("rank", turned[rank]), (gain, error))
        return gains | {("repair", turned[rank]): gain for rank, gain in self.repairs.items()}


@dataclass(frozen=True, slots=True)
class Case:
    """One change of one run, and how far the predictions moved."""

    run: str
    change: str
    gain_moved: float
    """Largest change of the gain of a repair or a finding."""
    gain_beyond: float
    """Largest part of such a change that the stated errors do not cover."""
    ideal_moved: float
    first_stays: bool


def predictions_of(traces: Traces, names: dict[int, str] | None = None) -> Predictions:
    """Write the traces and return the predictions; `names` gives each rank's file another number."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        folder.mkdir()
        for rank, trace in traces.items():
            with gzip.open(folder / f"{(names or {}).get(rank, rank)}.json.gz", "wt", compresslevel=1) as file:
                json.dump(trace, file)
        tables = open_run(folder, cache_dir=Path(temporary) / "cache").tables
        repairs = {}
        for rank in tables.ranks:
            try:
                outcome = predict(tables, [Edit("rank_as_peers", str(rank))])
            except UspProfError:
                continue
            repairs[rank] = (outcome.gain_fraction, outcome.error_fraction)
        ideal = ideal_of(tables)
        findings = tuple(
            (finding.code, finding.where.get("rank"), finding.gain_fraction, finding.error_fraction or 0.0)
            for finding in search(tables).findings
            if finding.part_of < 0
        )
        slowdown = ideal.slowdown if ideal else 1.0
        return Predictions(repairs, math.nan if slowdown is None else 1 - 1 / slowdown, findings)


def changes_of(traces: Traces) -> Iterator[tuple[str, Traces, dict[int, str] | None, dict[int, int]]]:
    """Yield each change: its name, the changed traces, the files' names, and the new number of each rank."""
    ranks = list(traces)
    same = {rank: rank for rank in ranks}
    for rank in (ranks[0], ranks[len(ranks) // 2]):
        for shift in SHIFTS_US:
            yield f"device clock {shift:+d} us", _of_rank(traces, rank, partial(_shifted, shift=shift)), None, same
        yield "host activity added at the end", _of_rank(traces, rank, _with_tail), None, same
        yield "host activity cut at the end", _of_rank(traces, rank, _without_tail), None, same
        yield "kernels split", _of_rank(traces, rank, _split), None, same
        yield "sleeping thread", _of_rank(traces, rank, _with_sleeper), None, same
        yield "timestamps in whole microseconds", _of_rank(traces, rank, _in_microseconds), None, same
        yield f"timestamps {JITTER_US} us off", _of_rank(traces, rank, _jittered), None, same
    steps = sorted(
        {int(match[1]) for event in traces[ranks[0]]["traceEvents"] if (match := STEP.match(str(event.get("name"))))}
    )
    if len(steps) > 2:
        for name, step in (("first step dropped", steps[0]), ("last step dropped", steps[-1])):
            yield name, {rank: _without_step(trace, step) for rank, trace in traces.items()}, None, same
    files = {rank: f"file{place}" for place, rank in enumerate(reversed(ranks))}
    yield "files permuted", traces, files, same
    if any(TRACE_METADATA_KEY in trace for trace in traces.values()):
        return  # the recorder's description and marks contain rank numbers, too
    turned = dict(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    yield "ranks renamed", {turned[rank]: _renamed(trace, turned) for rank, trace in traces.items()}, None, turned


def _of_rank(traces: Traces, rank: int, change: Callable[[list[Event]], list[Event]]) -> Traces:
    trace = traces[rank]
    return {**traces, rank: {**trace, "traceEvents": change(trace["traceEvents"])}}


def _shifted(events: list[Event], shift: float) -> list[Event]:
    return [{**event, "ts": event["ts"] + shift} if event.get("cat") in DEVICE else event for event in events]


def _ends(events: list[Event], categories: tuple[str, ...]) -> float:
    return max(event["ts"] + event["dur"] for event in events if event.get("cat") in categories and "dur" in event)


def _launching_thread(events: list[Event]) -> Event:
    return next(event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver"))


def _with_tail(events: list[Event]) -> list[Event]:
    """Add a long host operator after all other events."""
    last = max(event["ts"] + event["dur"] for event in events if event.get("ph") == "X" and "dur" in event)
    thread = _launching_thread(events)
    place = {"pid": thread["pid"], "tid": thread["tid"], "ts": last + 10, "dur": TAIL_US, "args": {}}
    return [*events, {"ph": "X", "cat": "cpu_op", "name": "clean_up", **place}]


def _without_tail(events: list[Event]) -> list[Event]:
    last = _ends(events, ("kernel",))
    host = ("cpu_op", "cuda_runtime", "cuda_driver", "python_function")
    return [event for event in events if event.get("cat") not in host or event["ts"] <= last]


def _split(events: list[Event]) -> list[Event]:
    """Split the compute kernels of some names in two halves."""
    changed = []
    for event in events:
        is_split = event.get("cat") == "kernel" and "nccl" not in event["name"].lower() and event["dur"] >= 4
        if is_split and not crc32(event["name"].encode()) % SPLIT_ONE_IN:
            half = event["dur"] / 2
            changed += [{**event, "dur": half}, {**event, "ts": event["ts"] + half, "dur": half}]
        else:
            changed.append(event)
    return changed


def _in_microseconds(events: list[Event]) -> list[Event]:
    """Round times down to microseconds, as older profilers do."""
    return [
        {**event, "ts": math.floor(event["ts"]), "dur": math.floor(event["dur"])} if "dur" in event else event
        for event in events
    ]


def _jittered(events: list[Event]) -> list[Event]:
    """Move starts like rounded floating-point timestamps in microseconds since 1970."""
    return [
        {**event, "ts": event["ts"] + JITTER_US * (2 * (place % 2) - 1)} if "dur" in event else event
        for place, event in enumerate(events)
    ]


def _with_sleeper(events: list[Event]) -> list[Event]:
    timed = [event for event in events if event.get("ph") == "X" and "dur" in event]
    begin = min(event["ts"] for event in timed)
    end = max(event["ts"] + event["dur"] for event in timed)
    place = {"pid": _launching_thread(events)["pid"], "tid": 999_999, "ts": begin, "dur": end - begin, "args": {}}
    return [*events, {"ph": "X", "cat": "cpu_op", "name": "sleep", **place}]


def _without_step(trace: dict[str, Any], step: int) -> dict[str, Any]:
    """Drop the host events of a step, and the device work that they launched."""
    events = trace["traceEvents"]
    (mark,) = (
        event for event in events if event.get("name") == f"ProfilerStep#{step}" and event["cat"] == "user_annotation"
    )
    begin, end = mark["ts"], mark["ts"] + mark["dur"]

    def is_inside(event: Event) -> bool:
        return event.get("cat") not in DEVICE and "ts" in event and begin <= event["ts"] < end

    launched = {event.get("args", {}).get("correlation") for event in events if is_inside(event)} - {None, 0}
    kept_events = [
        event
        for event in events
        if not is_inside(event)
        and not (event.get("cat") in DEVICE and event.get("args", {}).get("correlation") in launched)
        and event.get("name") != f"ProfilerStep#{step}"
    ]
    return {**trace, "traceEvents": kept_events}


def _renamed(trace: dict[str, Any], turned: dict[int, int]) -> dict[str, Any]:
    """Renumber ranks in the job's description and in the lists of each group."""

    def of_list(ranks: list[int]) -> list[int]:
        return [turned.get(rank, rank) for rank in ranks]

    about = {**trace["distributedInfo"], "rank": turned[int(trace["distributedInfo"]["rank"])]}
    groups = about.get("pg_config", [])
    about["pg_config"] = [
        {**group, "ranks": of_list(group["ranks"])} if isinstance(group.get("ranks"), list) else group
        for group in groups
    ]
    events = []
    for event in trace["traceEvents"]:
        args = event.get("args") or {}
        text = args.get("Process Group Ranks")
        if isinstance(text, str) and re.fullmatch(r"\[[\d, ]+\]", text):
            numbers = of_list([int(part) for part in re.findall(r"\d+", text)])
            events.append({**event, "args": {**args, "Process Group Ranks": str(numbers)}})
        else:
            events.append(event)
    return {**trace, "distributedInfo": about, "traceEvents": events}


def cases_of(folder: Path) -> Iterator[Case]:
    """Yield the cases of one run."""
    traces = _read(folder)
    before = predictions_of(traces)
    print(f"# {folder.name}: {before}", flush=True)
    for change, changed, names, turned in changes_of(traces):
        case = _compared(folder.name, change, before, predictions_of(changed, names), turned)
        print(case, flush=True)
        yield case


def _read(folder: Path) -> Traces:
    traces = {}
    for path in sorted(folder.rglob("*.json*")):
        if "_et_" in path.name or path.name in ("run.json", "truth.json"):
            continue
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            trace = json.load(file)
        traces[int(trace["distributedInfo"]["rank"])] = trace
    return dict(sorted(traces.items()))


def _compared(run: str, change: str, before: Predictions, after: Predictions, turned: dict[int, int]) -> Case:
    after_gains = after.gains({rank: rank for rank in turned})
    moved, beyond = 0.0, 0.0
    for change_key, (gain, error) in before.gains(turned).items():
        if "dropped" in change and change_key[0] != "repair":
            continue  # the cause may have been in that step
        then, then_error = after_gains.get(change_key, (0.0, 0.0))  # a missing finding has no gain
        moved = max(moved, abs(then - gain))
        beyond = max(beyond, abs(then - gain) - max(error, then_error))
    ideal = 0.0 if math.isnan(after.ideal) and math.isnan(before.ideal) else abs(after.ideal - before.ideal)
    return Case(run, change, moved, beyond, ideal, _first_stays(before, after, turned))


def _first_stays(before: Predictions, after: Predictions, turned: dict[int, int]) -> bool:
    """Return whether the first finding is the same, or was within the error of the one that is first now."""
    if not before.findings or not after.findings:
        return not before.findings and not after.findings
    code, rank, gain, error = before.findings[0]
    for code_then, rank_then, gain_then, error_then in after.findings[:3]:
        if (code_then, rank_then) == (code, None if rank is None else turned[rank]):
            return abs(after.findings[0][2] - gain_then) <= max(error, error_then, after.findings[0][3])
    return gain <= error


def table(cases: list[Case]) -> list[str]:
    """Return the table in Markdown: one row per change, over all runs, misses included."""
    lines = [
        (
            "| change | cases | gains within the error | largest change of a gain, points "
            "| change of the ideal step, points | first finding stays |"
        ),
        "|---|---|---|---|---|---|",
    ]
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.change, []).append(case)
    for change, group in [*groups.items(), ("all", cases)]:
        within = sum(not case.gain_beyond for case in group)
        moved, ideal = (100 * max(part) for part in zip(*((c.gain_moved, c.ideal_moved) for c in group), strict=True))
        stays = sum(case.first_stays for case in group)
        count = len(group)
        lines.append(f"| {change} | {count} | {within} of {count} | {moved:.1f} | {ideal:.1f} | {stays} of {count} |")
    return lines


def main() -> int:
    """Run all cases and print or write the table; return 1 if the bar is missed."""
    options = case_options(__doc__)
    cases = [case for folder in options.folders for case in cases_of(folder)]
    write_table(table(cases), options.page, BEGIN, END)
    return int(any(case.gain_beyond or not case.first_stays for case in cases))


if __name__ == "__main__":
    sys.exit(main())
