"""Do some steps of a replay stand for all of a run? Only where the edit does the same in each, and it has settled.

It must change as much of the counted steps as of the others, save as much in each stretch, no more in its first half
than in its second, and no lane may fall behind the others: what is not held up yet would be, some steps later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof.replay.sample import COUNTED, LEAD, STRETCHES, WIDTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from usp_prof.replay.graph import Graph, Ints, Timeline
    from usp_prof.replay.sample import Recorded, Sample

    Floats = NDArray[np.float64]

SURE = 0.001
"""Of the step: so much the parts of a sample may differ by, and all that a sample misses."""
ALIKE = 0.01
"""Changed waits are alike where the counted steps have so many as the others, give or take this share."""
KEEPS_UP = 0.8
"""Of what the steps save, each lane has to save so much: else it holds them up later."""


def saving(recorded: Recorded, edited: Graph, timeline: Timeline, step_ns: float) -> float | None:
    """Say what a step saves, as the replay of the sample has it; `None` where the sample does not stand for all."""
    steps, nodes = recorded.sample.steps, recorded.graph.nodes
    shift = timeline.start - recorded.timeline.start
    saved = shift[steps.begin] - shift[steps.end]
    mean, spare = float(saved.mean()), SURE * step_ns
    if not _alike(recorded.sample, edited, mean / step_ns, spare):
        return None
    by_stretch = _means(saved, steps.stretch)
    halves = _means(saved, (steps.nth >= COUNTED // 2).astype(np.int64))
    if any(np.ptp(each) > 2 * spare for each in (by_stretch, halves) if len(each)):
        return None
    first, last, stretch = _along(recorded.sample, nodes.lane)
    along = (shift[first] - shift[last]) / COUNTED
    usual = np.zeros(STRETCHES)
    usual[np.unique(steps.stretch)] = by_stretch
    return mean if (along >= KEEPS_UP * usual[stretch] - spare).all() else None


def _means(values: Ints, group: Ints) -> Floats:
    sums, number = np.bincount(group, values), np.bincount(group)
    return np.asarray(sums[number > 0] / number[number > 0])


def _along(sample: Sample, lane: Ints) -> tuple[Ints, Ints, Ints]:
    """Give of each lane and stretch the first node of the first counted step and of the step behind the last one."""
    step = sample.step[sample.rows]
    opened = np.flatnonzero(np.diff(sample.stretch, prepend=-1) > 0)
    nth = step - opened[sample.stretch[step]]
    heads = np.append(True, (lane[1:] != lane[:-1]) | (step[1:] != step[:-1]))
    first, last = (np.flatnonzero(heads & (nth == wanted)) for wanted in (LEAD, WIDTH - 1))
    _, here, there = np.intersect1d(lane[first], lane[last], assume_unique=True, return_indices=True)
    return first[here], last[there], sample.stretch[step[first[here]]]


def _alike(sample: Sample, edited: Graph, gain: float, spare: float) -> bool:
    """Say whether the counted steps are changed as the others are; the first step of a run counts nowhere."""
    others = np.arange(len(sample.stretch)) > 0
    times, waits = _changes(sample, edited)
    if times is not None:
        mean, all_ = float(times[sample.counted].mean()), float(times[others].mean())
        if abs(mean - all_) > spare and abs(gain) * abs(mean / all_ - 1) > SURE:
            return False
        if abs(mean - all_) > max(spare, all_ / 2):
            return False
    for number in waits:
        mean, all_ = float(number[sample.counted].mean()), float(number[others].mean())
        if abs(mean - all_) > ALIKE * abs(all_):
            return False
    return True


def _changes(sample: Sample, edited: Graph) -> tuple[Floats | None, list[Floats]]:
    """Measure in each step what an edit changes of times, and how many edges and ties it takes or gives."""
    base = sample.base
    times: list[Floats] = []
    counts: list[Floats] = []
    pairs = [(getattr(base, name), getattr(edited, name)) for name in ("duration", "gap", "transfer")]
    changed = [np.abs(after - before) for before, after in pairs if after is not before]
    for much in changed:
        there = np.flatnonzero(much)  # mostly few
        times.append(_by_step(sample, sample.step[there], much[there]))
    if edited.tied is not base.tied:
        counts.append(_by_step(sample, sample.step, edited.tied != base.tied))
    before, after = base.edges, edited.edges
    if after.source is before.source and after.target is before.target:
        if after.lag is not before.lag:
            times.append(_by_step(sample, sample.step[before.target], np.abs(after.lag - before.lag)))
    else:
        counts.append(_by_step(sample, sample.step[after.target]) - _by_step(sample, sample.step[before.target]))
    return (np.sum(times, axis=0) if times else None), counts


def _by_step(sample: Sample, step: Ints, weights: NDArray[Any] | None = None) -> Floats:
    """Add up weights, or count, in each step."""
    count = len(sample.stretch)
    return np.asarray(np.bincount(step + 1, weights, minlength=count + 1)[1:], np.float64)
