"""Inferred actions: pipeline actions of ranks that mark none, from what they computed between sends and receives.

The ranks of a pipeline follow from who first sends to whom. Each rank's stretches of forward and backward work
(`stretches`) are set beside the orders of all named schedules: one that has the same turns and sends on every rank
tells stage and micro-batch of each action. A plain pipeline in another order counts its micro-batches through, as
messages keep their order. Else only the kinds are known. What marks leave out (`Forward 3` names no stage) is filled
in from the pipeline's order as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.columns.table import Columns
from usp_prof.model.topology import Axis
from usp_prof.tables import actions
from usp_prof.tables.build import table
from usp_prof.tables.pipeline import stretches
from usp_prof.tables.pipeline.turns import Labelled, Turn, by_named_order, counted
from usp_prof.tables.table_set import ChangedSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from usp_prof.tables.pipeline.stretches import Messages, Stretches
    from usp_prof.tables.table_set import Source

INFERRED = "inferred"
_LIGHT = (0.05, 0.1, 0.2, 0.4)
"""Shares of the median stretch: lighter ones may be copies, buffers or a gradient's packing, between actions."""


class Inference:
    """The actions of all ranks of a run, completed when first asked for."""

    def __init__(self, sources: Mapping[int, Source]) -> None:
        self._sources = sources
        self._made: dict[int, pa.Table] | None = None

    def of(self, rank: int) -> pa.Table:
        """Give a rank's actions: as marked, completed, or inferred."""
        if self._made is None:
            self._made = _complete(self._sources)
        return self._made[rank]


def completed(sources: Mapping[int, Source]) -> dict[int, Source]:
    """Wrap each rank's tables so that actions are complete; made on demand."""
    inference = Inference(sources)

    def changed(rank: int, source: Source) -> ChangedSource:
        return ChangedSource(source, {actions.SCHEMA.name: lambda _: inference.of(rank)})

    return {rank: changed(rank, source) for rank, source in sources.items()}


def _complete(sources: Mapping[int, Source]) -> dict[int, pa.Table]:
    """Give every rank's actions: without any marks inferred, with marks that name no stage completed."""
    found = {rank: source.table(actions.SCHEMA.name) for rank, source in sources.items()}
    is_marked = any(len(made) for made in found.values())
    if is_marked and not any(_lacks_stages(made) for made in found.values()):
        return found
    passed = {rank: stretches.messages(source) for rank, source in sources.items()}
    for chain in chains(sources, passed):
        if is_marked:
            for stage, rank in enumerate(chain):
                found[rank] = _with_stage(found[rank], stage)
        else:
            found |= _inferred(sources, passed, chain)
    return found


def _lacks_stages(made: pa.Table) -> bool:
    return bool((Columns(made)["stage"] < 0).any())


def _with_stage(made: pa.Table, stage: int) -> pa.Table:
    """Fill in the stage where marks leave it out; a rank that does a micro-batch twice in a step has several stages."""
    columns = Columns(made)
    without = columns["stage"] < 0
    if not without.any():
        return made
    kinds = columns.codes("kind")[0]
    in_step = without & (columns["step"] >= 0)
    # Step, kind and micro-batch of each action without a stage, one column each: no two are alike on a single stage.
    keys = np.stack([columns["step"], kinds, columns["micro_batch"]])[:, in_step]
    if np.unique(keys, axis=1).shape[1] < keys.shape[1]:
        return made
    place = made.column_names.index("stage")
    return made.set_column(place, made.schema.field(place), [np.where(without, stage, columns["stage"])])


def chains(sources: Mapping[int, Source], passed: Mapping[int, Messages]) -> list[tuple[int, ...]]:
    """Sort ranks into pipelines in order of their stages: the first sends first, each next gets its first message."""
    found, left = [], {rank for rank in sources if len(passed[rank].posted)}
    for rank in sorted(left):
        if rank not in left:
            continue
        members = _members(rank, passed) or _group(sources[rank], rank)
        members &= left
        left -= members
        chain = _in_order(members, passed)
        if len(chain) > 1:
            found.append(chain)
    return found


def _members(rank: int, passed: Mapping[int, Messages]) -> set[int]:
    """Give all ranks that a rank exchanges messages with, also through others; nothing where peers are unknown."""
    members, new = {rank}, {rank}
    while new:
        heard = {peer for one in new if one in passed for peer in np.unique(passed[one].peer).tolist()}
        if -1 in heard:
            return set()
        new = heard - members
        members |= new
    return members


def _group(source: Source, rank: int) -> set[int]:
    groups = Columns(source.view("groups"))
    for axis, ranks in zip(groups["axis"].tolist(), groups["ranks"].tolist(), strict=True):
        if axis == str(Axis.PP) and ranks:
            return {int(text) for text in ranks.split(",")}
    return {rank}


def _in_order(members: set[int], passed: Mapping[int, Messages]) -> tuple[int, ...]:
    """Sort the ranks of a pipeline by stage, following who first sends to whom.

    Stage 0 is the one rank whose first message is a send. It sends to stage 1, whose first send goes to stage 2, and so
    on. Where peers are unknown, or several ranks send first, the order of the ranks is taken.
    """
    sending_first = [rank for rank in sorted(members) if passed[rank].sends[0]]
    chain = sending_first[:1]
    while len(sending_first) == 1 and len(chain) < len(members):
        last = passed[chain[-1]]
        peers = last.peer[last.sends]
        following = int(peers[0]) if len(peers) else -1
        if following not in members or following in chain:
            break
        chain.append(following)
    return tuple(chain) if len(chain) == len(members) else tuple(sorted(members))


def _inferred(
    sources: Mapping[int, Source], passed: Mapping[int, Messages], chain: tuple[int, ...]
) -> dict[int, pa.Table]:
    """Infer the actions of the ranks of one pipeline, step by step."""
    # All three have one entry a rank of the chain.
    found = [stretches.stretches(sources[rank], passed[rank]) for rank in chain]
    messages = [passed[rank] for rank in chain]
    labelled: list[list[Labelled]] = [[] for _ in chain]
    for step in sorted({number for of_rank in found for number in of_rank.step.tolist()}):
        for place, labels in enumerate(_labelled_step(found, messages, step)):
            labelled[place] += labels
    return {rank: _table(rank, found[place], labelled[place], messages[place]) for place, rank in enumerate(chain)}


def _labelled_step(found: Sequence[Stretches], passed: Sequence[Messages], step: int) -> list[list[Labelled]]:
    """Leave out as little light work as makes the rest fit an order; all but the lightest where none fits."""
    tried = [[_turns(*one, step, share) for one in zip(found, passed, strict=True)] for share in _LIGHT]
    for turns in tried:
        if labels := by_named_order(turns):
            return labels
    return counted(tried[0])


def _turns(found: Stretches, passed: Messages, step: int, share: float) -> list[tuple[int, Turn]]:
    """List the stretches of a rank in one step with their kinds, and whether something was sent after each."""
    rows = found.heavy(share)
    kinds, sends = found.kind[rows], found.sends(rows, passed)
    chosen = np.flatnonzero(found.step[rows] == step)
    return [(int(rows[place]), Turn(int(kinds[place]), bool(sends[place]))) for place in chosen.tolist()]


def _table(rank: int, found: Stretches, labelled: Sequence[Labelled], passed: Messages) -> pa.Table:
    """Make the actions of a rank from its labelled stretches: a stretch of several actions is cut into as many."""
    work, arrived = found.work, passed.ended[~passed.sends]
    named = [action for label in labelled for action in label.actions]  # kind, stage and micro-batch
    # Work of each action, from `low` to before `high`; what ran before its receive arrived is left out.
    ranges = []
    for label in labelled:
        for low, high in found.pieces(list(label.rows), len(label.actions)):
            ranges.append((found.after_receiving(low, high, arrived), high))
    first = np.array([low for low, _ in ranges], np.int64)
    start = np.array([work.begun[low:high].min() for low, high in ranges], np.int64)
    columns = {
        "rank": rank,
        "event": work.event[first],
        "kind": [kind for kind, _, _ in named],
        "stage": np.array([stage for _, stage, _ in named], np.int64),
        "micro_batch": np.array([number for _, _, number in named], np.int64),
        "start_ns": start,
        "dur_ns": np.array([work.ended[low:high].max() for low, high in ranges], np.int64) - start,
        "device_start_ns": np.array([work.start[low:high].min() for low, high in ranges], np.int64),
        "device_end_ns": np.array([work.end[low:high].max() for low, high in ranges], np.int64),
        "source": INFERRED,
        "step": found.step[np.searchsorted(found.first, first, side="right") - 1],
    }
    return table(actions.SCHEMA, columns, len(ranges))
