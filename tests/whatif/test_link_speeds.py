"""Speed of links: groups, and pairs of ranks that send and receive, compared with others of their axis."""

from __future__ import annotations

import pytest
from tiny import Trace, table_set

from usp_prof.findings.rules.links import SlowLink
from usp_prof.model.edit import parse_edit
from usp_prof.model.errors import UsageError
from usp_prof.replay.build import graph_of
from usp_prof.replay.graph import NodeKind
from usp_prof.replay.peers import calls_of
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.link_speeds import link_slowness
from usp_prof.whatif.predict import predict

US = 1_000
STEPS, MESSAGES = 2, 5
COMPUTE_US, FAST_US, SLOW_US = 50, 100, 600
PERIOD_US = MESSAGES * SLOW_US + 1_000
PAIRS = [(0, 2), (1, 3)]
SLOW_PAIR, FAST_PAIR = PAIRS


def _end(rank: int, group: list[int], transfer_us: int) -> Trace:
    """Send messages to the other rank of the pair, or receive them; the host waits for the last one."""
    trace = Trace(rank, 4).group("1" if len(group) == 4 else str(1 + rank % 2), group, "mesh_pp")
    name, sends = next(iter(trace.groups)), rank < 2
    for step in range(STEPS):
        start = step * PERIOD_US
        host, compute, transfer = start + 10, start + 20, start + 20 + COMPUTE_US
        for _ in range(MESSAGES):
            if sends:
                trace.kernel("work", compute * US, COMPUTE_US * US, launch_at=host * US)
                compute += COMPUTE_US
            trace.collective(
                "send" if sends else "recv", transfer * US, transfer_us * US, group=name, nelems=1_000_000,
                peer=rank + 2 if sends else rank - 2, launch_at=(host + 2) * US,
            )  # fmt: skip
            host, transfer = host + 5, transfer + transfer_us
        trace.launch(step, host * US, (transfer - host) * US, name="cudaDeviceSynchronize")
        trace.step(step, start * US, (transfer - start) * US)
    return trace


def _pipelines(*, in_one_group: bool, slow_us: int = SLOW_US) -> TableSet:
    return table_set(
        {
            rank: _end(rank, [0, 1, 2, 3] if in_one_group else list(pair), slow_us if pair == SLOW_PAIR else FAST_US)
            for pair in PAIRS
            for rank in pair
        }
    )


@pytest.mark.parametrize("in_one_group", [False, True])
def test_a_pair_of_ranks_with_slow_messages_is_a_slow_link(in_one_group: bool) -> None:
    tables = _pipelines(in_one_group=in_one_group)
    draft = next(draft for draft in SlowLink.look(tables) if draft.where["group"] == "1@0,2")
    assert draft.evidence["ratio"] == pytest.approx(SLOW_US / FAST_US)
    for edit in (parse_edit("link_as_peers=all"), draft.edit):
        predicted = predict(tables, [edit])
        saved_us = MESSAGES * (SLOW_US - FAST_US) / 2  # mean of the ranks; the other pair is as fast as before
        assert predicted.before_ns - predicted.after_ns == pytest.approx(saved_us * US, abs=5 * US)


@pytest.mark.parametrize("in_one_group", [False, True])
def test_pairs_of_equal_speed_are_no_slow_links(in_one_group: bool) -> None:
    tables = _pipelines(in_one_group=in_one_group, slow_us=FAST_US)
    assert link_slowness(tables) == []
    assert predict(tables, [parse_edit("link_as_peers=all")]).gain_fraction == 0


def test_a_host_without_peers_cannot_perform_like_them() -> None:
    """It used to be predicted to save nothing."""
    tables = table_set({rank: _end(rank, [0, 2], FAST_US) for rank in (0, 2)})
    for edit in ("rank_as_peers=0", "host_as_peers=0"):
        with pytest.raises(UsageError, match="rank 0 has no peers"):
            predict(tables, [parse_edit(edit)])


def _shard(rank: int, transfer_us: int, *, has_earlier: bool) -> Trace:
    """Gather several times per step; the first gather of one rank was launched before recording began."""
    group = [rank // 2 * 2, rank // 2 * 2 + 1]
    trace = Trace(rank, 4).group(str(1 + rank // 2), group, "mesh_dp_shard")
    name = next(iter(trace.groups))
    if has_earlier:
        trace.collective("all_gather", 0, transfer_us * US, group=name, nelems=1_000_000)
    for step in range(STEPS):
        start = step * PERIOD_US + SLOW_US
        host, transfer = start + 10, start + 20
        trace.step(step, start * US, (PERIOD_US - 10) * US)
        for _ in range(MESSAGES):
            trace.collective(
                "all_gather", transfer * US, transfer_us * US, group=name, nelems=1_000_000, launch_at=host * US
            )
            host, transfer = host + 5, transfer + transfer_us
    return trace


def test_collectives_of_a_slow_group_that_were_launched_before_recording_become_faster_too() -> None:
    """Only one member recorded the earlier one, so it is not matched, and kept its time."""
    tables = table_set(
        {rank: _shard(rank, SLOW_US if rank < 2 else FAST_US, has_earlier=rank in {0, 2}) for rank in range(4)}
    )
    before, after = graph_of(tables), predict(tables, [parse_edit("link_as_peers=all")]).graph
    earlier = (before.nodes.kind == NodeKind.COMMUNICATION) & (before.nodes.call < 0)
    assert before.duration[earlier].tolist() == [SLOW_US * US, FAST_US * US]
    assert after.duration[earlier].tolist() == [FAST_US * US, FAST_US * US]


def _gloo_end(rank: int, transfer_us: int) -> Trace:
    """Send messages to the other rank of the pair over gloo, or receive them."""
    trace = Trace(rank, 4, device="cpu").group(str(1 + rank % 2), [rank % 2, rank % 2 + 2], "mesh_pp")
    trace.step(0, 0, PERIOD_US * US)
    for message in range(MESSAGES):
        begin = (10 + message * (transfer_us + 10)) * US
        trace.gloo(
            "send" if rank < 2 else "recv", begin, transfer_us * US, dims=(1_000_000,), posted_at=begin - 5 * US,
            group=str(1 + rank % 2), peer=(rank + 2) % 4,
        )  # fmt: skip
    return trace


def test_pairs_are_not_compared_over_gloo() -> None:
    """Processes that share cores often wait for a core, and their messages seem slow."""
    tables = table_set({rank: _gloo_end(rank, FAST_US if rank % 2 else SLOW_US) for rank in range(4)})
    messages = calls_of(tables)
    assert messages["transfer_ns"].max() > 5 * messages["transfer_ns"].min() > 0
    assert messages.matches("matched_by", "p2p").all()
    assert link_slowness(tables) == []


def test_a_group_may_be_named_without_its_ranks() -> None:
    tables = _pipelines(in_one_group=False)
    gains = [predict(tables, [parse_edit(f"link_as_peers={name}")]).gain_fraction for name in ("1", "1@0+2")]
    assert gains[0] == gains[1] > 0


def test_a_link_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no link is named '9@0'"):
        predict(_pipelines(in_one_group=False), [parse_edit("link_as_peers=9@0")])
