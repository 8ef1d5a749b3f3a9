"""Collectives: bandwidth by the nccl-tests factors, wait separate from transfer, pairs and uneven exchanges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest
from made import Row, part, step, work

import usp_prof
from usp_prof.analyses import collectives, overlap
from usp_prof.model.selection import Selection

MIB = 1 << 20
TRACES = Path(__file__).parents[2] / "traces"


def run(by_rank: dict[int, list[Row]], device: str = "", host: str = "one") -> Any:
    return made.run(
        {
            rank: {
                "collectives": [p | {"part": i} for i, p in enumerate(parts)],
                "steps": [step(0, 0, 1_000_000), step(1, 1_000_000, 2_000_000)],
                "ranks": [{"host": host or f"h{rank}", "base_ns": 1, "device": device}],
            }
            for rank, parts in by_rank.items()
        }
    )


def values(result: collectives.CollectivesResult, name: str) -> dict[tuple[Any, ...], float]:
    return {tuple(v.dims.values()): v.value for v in result.values() if v.metric.id == name}


def test_bandwidth_is_in_decimal_bytes_per_second_after_the_last_arrival() -> None:
    # 2 MiB in 100 us after the last arrival: 20.97 GB/s, regardless of the first rank's wait (other tools print 19.53).
    late = {"sequence": 1, "in_bytes": 2 * MIB, "out_bytes": 2 * MIB}
    result = collectives.compute(
        run({0: [part("all_reduce", 0, 150_000, **late)], 1: [part("all_reduce", 50_000, 150_000, **late)]})
    )
    assert values(result, "algbw")["dp", "all_reduce", 2 * MIB] == pytest.approx(20.97152e9)
    assert values(result, "busbw")["dp", "all_reduce", 2 * MIB] == pytest.approx(20.97152e9)
    assert values(result, "arrival_skew") == {("dp", "all_reduce"): 50_000}
    assert values(result, "wait_time")[()] == 50_000 / 2 / 2  # over two ranks and two steps
    assert values(result, "transfer_time")[()] == 100_000 / 2
    assert values(result, "wait_time")[0, 0] == 50_000
    assert values(result, "wait_time")[1, 0, "dp"] == 0


@pytest.mark.parametrize(("op", "factor"), [
    ("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75), ("broadcast", 1),
])  # fmt: skip
def test_bus_factors_are_those_of_nccl_tests(op: str, factor: float) -> None:
    assert collectives.bus_factor(op, 4) == factor
    rows = {r: [part(op, 0, 1_000, sequence=0, group_size=4, in_bytes=8, out_bytes=1_000)] for r in range(4)}
    kind = collectives.compute(run(rows)).kinds[0]
    assert kind.algbw == pytest.approx(1e9)
    assert kind.busbw == pytest.approx(factor * 1e9)


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "int8", "Float"])
def test_element_types_do_not_matter_if_bytes_are_known(dtype: str) -> None:
    rows = {r: [part("all_gather", 0, 1_000, sequence=0, in_bytes=10, out_bytes=20, dtype=dtype)] for r in range(2)}
    assert collectives.compute(run(rows)).kinds[0].algbw == pytest.approx(0.02e9)


def test_the_link_peak_applies_only_within_a_node() -> None:
    rows = {r: [part("all_reduce", 0, 1_000_000, sequence=0, in_bytes=150_000_000)] for r in range(2)}
    inside = collectives.compute(run(rows, "NVIDIA A100-SXM4-80GB"))
    assert inside.kinds[0].link_fraction == pytest.approx(150e9 / inside.link_peak)
    across = collectives.compute(run(rows, "NVIDIA A100-SXM4-80GB", host=""))
    assert across.kinds[0].inter_node == 1
    assert np.isnan(across.kinds[0].link_fraction)
    assert values(across, "link_fraction") == {}


def test_sizes_are_grouped_and_unknown_sizes_have_no_bandwidth() -> None:
    sizes = [1_000, 1_024, 1_025, -1]
    rows = [part("all_reduce", 10 * i, 10 * i + 5, sequence=i, in_bytes=size) for i, size in enumerate(sizes)]
    result = collectives.compute(run({0: rows, 1: rows}))
    assert [(k.size_bytes, k.calls) for k in result.kinds] == [(-1, 1), (1024, 2), (2048, 1)]
    table = result.to_pandas()
    assert table["size_bytes"].isna().tolist() == table["bytes"].isna().tolist() == [True, False, False]
    assert [note.code for note in result.notes] == ["calls_without_size"]
    volumes = dict(zip(result.listing()["size_bytes"], result.listing()["bytes"], strict=True))
    assert volumes[-1] == -1
    assert -1 not in {value.dims["size"] for value in result.values() if value.metric.id == "collective_bytes"}
    assert table["bytes"].sum() == 2024 + 1025, "what is not known adds nothing"
    assert len(result.points.bytes) == 3


def test_calls_with_missing_members_have_no_wait() -> None:
    rows = {0: [part("all_reduce", 0, 10, sequence=0, in_bytes=8), part("all_reduce", 20, 30, group="", in_bytes=8)]}
    result = collectives.compute(run(rows))
    assert values(result, "wait_time") == {}
    assert values(result, "collective_calls") == {("dp", "all_reduce", 8): 1}
    assert [note.code for note in result.notes] == ["calls_incomplete", "parts_unmatched"]


def test_each_direction_of_a_pair_is_measured_separately() -> None:
    down, up = {"axis": "pp", "in_bytes": 64, "out_bytes": 64}, {"axis": "pp", "in_bytes": 8, "out_bytes": 8}
    parts_of_first = [part("send", 40, 100, peer=1, **down), part("recv", 200, 300, peer=1, **up)]
    parts_of_second = [part("recv", 0, 100, peer=0, **down), part("send", 200, 300, peer=0, **up)]
    pairs = collectives.compute(run({0: parts_of_first, 1: parts_of_second})).pairs
    assert [(p.source, p.target, p.bytes, p.wait_ns, p.transfer_ns) for p in pairs] == [
        (0, 1, 64, 40, 60), (1, 0, 8, 0, 100),
    ]  # fmt: skip


def test_uneven_all_to_alls_show_which_rank_receives_more() -> None:
    rows = {
        0: [part("all_to_all", 0, 10, sequence=0, in_bytes=40, out_bytes=30, in_split="[1, 3]", axis="ep")],
        1: [part("all_to_all", 0, 10, sequence=0, in_bytes=40, out_bytes=50, in_split="[2, 2]", axis="ep")],
    }
    result = collectives.compute(run(rows))
    assert values(result, "all_to_all_imbalance") == {("ep",): 1.25}
    assert result.exchanges[0].sent == ((0, 1, 30), (1, 0, 20), (1, 1, 20), (0, 0, 10))
    damaged = {r: [part("all_to_all", 0, 10, sequence=0, in_bytes=8, out_bytes=8, in_split="[1,")] for r in range(2)}
    assert collectives.compute(run(damaged)).exchanges[0].sent == ()


def test_a_selection_keeps_calls_of_its_steps_and_ranks() -> None:
    rows = [part("all_reduce", 10 * i, 10 * i + 5, sequence=i, in_bytes=8, step=i) for i in range(2)]
    tables = run({0: rows, 1: rows})
    assert sum(k.calls for k in collectives.compute(tables, Selection(first_step=1)).kinds) == 1
    assert sum(k.calls for k in collectives.compute(tables, Selection(ranks=(7,))).kinds) == 0
    chosen = collectives.compute(tables, Selection(ranks=(1,), last_step=0))
    assert set(values(chosen, "transfer_time")) == {(), (1,), (1, 0), ("dp",), (1, "dp"), (1, 0, "dp")}


def test_time_is_linear_in_the_number_of_calls() -> None:
    """Other tools take 26 s for 4,000 collectives on 16 ranks; the cost here is linear in the number of calls."""
    rows = [part("all_reduce", 10 * i, 10 * i + 5, sequence=i, in_bytes=8, group_size=8) for i in range(500)]
    result = collectives.compute(run(dict.fromkeys(range(8), rows)))
    assert result.kinds[0].complete == 500


@pytest.mark.parametrize("name", ["recorded-5d", "recorded-ring-zigzag", "gpu-nccl-zero3"])
def test_waiting_and_transfer_are_parts_of_the_communication(name: str, tmp_path: Path) -> None:
    run = usp_prof.open_run(TRACES / name, cache_dir=tmp_path)
    comm = {tuple(v.dims.items()): v.value for v in overlap.compute(run.tables).values() if v.metric.id == "comm_time"}
    split: dict[tuple[tuple[str, int | str], ...], float] = {}
    for value in collectives.compute(run.tables).values():
        if value.metric.id in ("wait_time", "transfer_time"):
            place = tuple(value.dims.items())
            split[place] = split.get(place, 0) + value.value
    assert split
    assert all(time <= comm[place] * (1 + 1e-9) for place, time in split.items())


def test_time_in_which_one_call_waits_and_another_transfers_is_transfer() -> None:
    """Two calls wait for another rank at the same time; it joins the second call 20 us after the first."""
    rows = {
        0: [part("all_reduce", 0, 60_000, part=0, group="a@0,1", axis="dp", group_size=2),
            part("all_reduce", 10_000, 90_000, part=1, group="b@0,1", axis="dp", group_size=2)],
        1: [part("all_reduce", 40_000, 60_000, part=0, group="a@0,1", axis="dp", group_size=2),
            part("all_reduce", 70_000, 90_000, part=1, group="b@0,1", axis="dp", group_size=2)],
    }  # fmt: skip
    run = made.run(
        {
            rank: {
                "collectives": parts,
                "activities": [work("communication", row["start_ns"], row["start_ns"] + row["dur_ns"], "dp",
                                    collective=n) for n, row in enumerate(parts)],
                "steps": [step(0, 0, 100_000)],
            }
            for rank, parts in rows.items()
        }
    )  # fmt: skip
    result = collectives.compute(run)
    # Rank 0 communicates from 0 to 90: it waits to 40, transfers to 60, waits to 70, transfers to 90.
    assert values(result, "wait_time")[0, 0, "dp"] == 50_000
    assert values(result, "transfer_time")[0, 0, "dp"] == 40_000
    assert values(result, "wait_time")[1, 0, "dp"] == 0
