"""Rules on links: a slow one, unused bandwidth, latency paid many times, tensor parallelism over slow links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from usp_prof.analyses import collectives
from usp_prof.columns.rows import distinct, rows_by_code
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.proof import longest
from usp_prof.findings.slow_axes import slow_axes
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.model.topology import Axis
from usp_prof.replay.build import graph_of
from usp_prof.replay.peers import group_word, link_slowness
from usp_prof.tables import calls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet


SLOW_LINK = 1.2


class SlowLink:
    """A link is slower than its peers, or than any network.

    What it finds
        A process group whose transfers (the time after the last member has arrived) take at least 1.2 times as long as
        those of the other groups of its axis, for the same operation and the same bytes, and whose repair would shorten
        the step by 1 % or more.
        A whole axis has nothing to be compared with. It is named where three quarters of its calls, in its best group,
        take at least 1.5 times as long as gigabit Ethernet would: the bytes at 125 MB/s after the latency that the best
        quarter of the other groups' messages show. Messages up to 64 KB take their latency alone: they have to take 4
        times as long as the other groups' ordinarily do. Of a burst only the first messages wait for the link, the last
        wait for them: so an axis is also named whose link is busy, in three quarters of the steps, 4 times as long as
        all its messages would take over Ethernet one after another. Where the device's link is known, `low-bandwidth`
        holds an axis against that.

    Why it costs time
        A collective is as fast as its slowest link: a port that trained down, a congested switch, a ring that leaves
        its node, a rank placed in another rack.

    What to do
        Test the group's links (`nccl-tests`, `ibstat`, `nvidia-smi nvlink -s`), look at `NCCL_DEBUG=INFO` for the rings
        and at the placement of its ranks; drain the node. torchtitan, Megatron-LM, nanotron and DeepSpeed have no
        setting for it; our trainer makes one with `--fault slow-link`.

    How the gain is predicted
        The run is replayed with this group's transfers as fast as the median of the other groups' (`link_as_peers`); a
        whole axis as fast as gigabit Ethernet (`comm_faster`), so that a better network gains more.

    When it is wrong
        When the group lies across nodes by design and the others do not. When ranks that share cores cannot send.
    """

    CODE = "slow-link"
    TITLE = "A link is slower than its peers, or than any network"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare each group's transfers with those of its axis' others, and each axis with gigabit Ethernet."""
        if not collectives.compute(tables).link_peak > 0:
            yield from slow_axes(tables)
        for link in link_slowness(tables):
            if link.ratio >= SLOW_LINK:
                members = link.group.partition("@")[2] or link.group
                slower = f"{link.ratio:.1f} times as long as in the other groups"
                yield Draft(
                    f"transfers among ranks {members} ({link.axis}) take {slower}",
                    {"axis": link.axis, "group": link.group},
                    {"ratio": link.ratio, "calls": link.calls, "extra_ns": link.extra_ns},
                    Edit("link_as_peers", group_word(link.group)),
                    "run nccl-tests among these ranks; check their placement",
                    least_gain=0.01,
                    # Its calls beside those of its peers, of the same operation and size.
                    rows='SELECT "group", op, bytes, count(*) AS calls, median(transfer_ns) AS transfer_ns FROM calls '
                    f"WHERE {proof.equals('axis', link.axis)} AND transfer_ns >= 0 "
                    'GROUP BY "group", op, bytes ORDER BY transfer_ns DESC, "group"',
                )


LARGE_BYTES = 16_000_000
LOW_SHARE = 1 / 3
REACHABLE_SHARE = 0.75
FEWEST_LARGE = 3


class LowBandwidth:
    """Large collectives are far below what the link allows.

    What it finds
        Collectives of 16 MB and more inside a node whose bus bandwidth is less than a third of the device's link, where
        three quarters of it would shorten the step by 2 % or more. Healthy ones reach a half to nine tenths; less than
        a third is a fallback to PCIe or to sockets, a link that is down, or a poor algorithm. Of an axis with several
        groups the best counts: one slow group is a `slow-link`. Processes that share a device take turns on it: they
        are held against no link.

    Why it costs time
        At these sizes a collective's time is its bytes over the bandwidth.

    What to do
        Look at `nvidia-smi topo -m`, `nvidia-smi nvlink -s` and `NCCL_DEBUG=INFO` (which transport and algorithm each
        channel has), run `nccl-tests`, check that peer access and `NCCL_P2P_DISABLE`, `NCCL_ALGO`, `NCCL_PROTO`,
        `NCCL_MAX_NCHANNELS` are not set, and that ranks are placed so that fast axes stay inside the node. torchtitan,
        Megatron-LM, nanotron, DeepSpeed and our trainer take this from NCCL's environment; Megatron-LM
        `--nccl-communicator-config-path` and DeepSpeed's `.deepspeed_env` set it by group and by node.

    How the gain is predicted
        The run is replayed with the axis' transfers as much faster as three quarters of the link are (`comm_faster`):
        modelled.

    When it is wrong
        When the device's link is not what the table of devices says (a PCIe board, half the links).
    """

    CODE = "low-bandwidth"
    TITLE = "Large collectives are far below what the link allows"
    NEEDS = (Input.ALL_RANKS, Input.ONE_CLOCK)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare each axis' large collectives with the link."""
        measures = collectives.compute(tables)
        shares = tables.manifest is not None and tables.manifest.processes_per_device > 1
        if shares or not measures.link_peak > 0:
            return
        points = measures.points
        large = (points.bytes >= LARGE_BYTES) & ~points.inter_node & ~points.matches("axis", "pp")
        codes, axes = points.texts["axis"]
        for axis in sorted({axes[code] for code in distinct(codes[large]).tolist()}):
            rows = np.flatnonzero(large & points.matches("axis", axis))
            groups = rows_by_code(points.texts["group"][0][rows])
            by_group = [float(np.median(points.busbw[rows[places]])) for places in groups.values()]
            # The best group tells what the axis reaches: one that is slower than the others is a slow link.
            measured = max(by_group)
            if len(rows) < FEWEST_LARGE or measured >= LOW_SHARE * measures.link_peak:
                continue
            graph = graph_of(tables)
            yield Draft(
                f"{axis} collectives reach {100 * measured / measures.link_peak:.0f} % of the link",
                {"axis": axis},
                {
                    "calls": len(rows),
                    "median_bytes": float(np.median(points.bytes[rows])),
                    "bus_bytes_per_second": measured,
                    "link_bytes_per_second": measures.link_peak,
                    **longest(graph, graph.on_axis(axis), graph.transfer),
                },
                Edit("comm_faster", f"{REACHABLE_SHARE * measures.link_peak / measured:.3g}", (("axis", axis),)),
                "look at the transport and algorithm that NCCL chose, and at the links",
                covers=("slow-link",),
                basis=Basis.MODELLED,
                rows=proof.largest(
                    "calls",
                    f"{proof.equals('axis', axis)} AND bytes >= {LARGE_BYTES} AND NOT inter_node",
                    "transfer_ns",
                ),
                settings={"NCCL": "NCCL_DEBUG=INFO"},
            )


AXES = (Axis.DP, Axis.DP_REPLICATE, Axis.DP_SHARD)
"""The other axes need each message before the next can be made: there is nothing to bucket."""
SMALL_BYTES = 1_000_000
FEWEST_SMALL = 10


class SmallMessages:
    """Many small collectives pay for latency instead of bandwidth.

    What it finds
        An axis of data parallelism with at least ten collectives of less than 1 MB in a step whose transfer takes so
        much longer than their bytes at the bandwidth of the axis' large collectives (without such, than one message
        for all) that bucketing them would shorten the step by 2 % or more.

    Why it costs time
        Below about a megabyte the time of a collective hardly depends on its size: it is launches, hops and handshakes.

    What to do
        Put them together: larger DDP buckets (`bucket_cap_mb`), FSDP units of whole blocks, DeepSpeed
        `reduce_bucket_size` and `allgather_bucket_size`, Megatron-LM `--ddp-bucket-size`; torchtitan: wrap whole blocks
        (its default), nanotron: its accumulator holds one bucket; our trainer: `--bucket-mb`.

    How the gain is predicted
        The run is replayed with each small transfer at the median bandwidth of the axis' large ones (`bucketed`):
        modelled, since no trace holds the bucketed call. Where an axis has no large ones but messages of very different
        sizes take alike, the calls of a megabyte together take what one takes.

    When it is wrong
        When each small collective is needed right away and no other is ready to go along.
    """

    CODE = "small-messages"
    TITLE = "Many small collectives pay for latency"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Count each axis' small collectives."""
        columns = calls.of(tables).columns()
        steps = max((len(tables.columns("steps", rank)) for rank in tables.ranks), default=0)
        for axis in AXES:
            rows = columns.matches("axis", str(axis)) & (columns["bytes"] > 0) & (columns["bytes"] < SMALL_BYTES)
            number = int(rows.sum()) / max(steps, 1)
            if number < FEWEST_SMALL:
                continue
            yield Draft(
                f"{number:.0f} small {axis} collectives a step pay for latency",
                {"axis": str(axis)},
                {"calls_per_step": number, "bytes": int(columns["bytes"][rows].sum())},
                Edit("bucketed", str(SMALL_BYTES), (("axis", str(axis)),)),
                "put them into larger buckets",
                covers=("slow-link",),
                basis=Basis.MODELLED,
                rows=proof.largest(
                    "calls", f"{proof.equals('axis', axis)} AND bytes > 0 AND bytes < {SMALL_BYTES}", "transfer_ns"
                ),
                settings={
                    "DDP": "bucket_cap_mb",
                    "DeepSpeed": "reduce_bucket_size",
                    "Megatron-LM": "--ddp-bucket-size",
                },
            )


REACHED = 0.75
"""Large collectives inside a node reach about so much of the link."""


class WideTensorParallel:
    """Tensor parallelism reaches beyond the island of fast links.

    What it finds
        Groups of the axis `tp` whose members lie on several hosts, on a device whose link is in the table of devices,
        where the rate of that link would shorten the step by 2 % or more.

    Why it costs time
        Inside a node NVLink moves hundreds of GB/s, between nodes a network card some tens; tensor parallelism has the
        most traffic of all axes and nothing to hide it behind.

    What to do
        Keep the degree at or below the devices of a node, and let the axis vary fastest over ranks. torchtitan:
        `parallelism.tensor_parallel_degree`; Megatron-LM: `--tensor-model-parallel-size`; nanotron: `parallelism.tp`;
        DeepSpeed: the degree of the `mpu` that it is given; our trainer: `--tp`. Use pipeline or data parallelism
        across nodes instead.

    How the gain is predicted
        The run is replayed with the axis' transfers at three quarters of the device's link, as large collectives inside
        a node reach it (`comm_faster`): modelled.

    When it is wrong
        When the fast links span several nodes (NVL72), or the hosts' names are those of containers on one machine.
    """

    CODE = "wide-tensor-parallel"
    TITLE = "Tensor parallelism reaches beyond the island of fast links"
    NEEDS = (Input.ALL_RANKS, Input.ONE_CLOCK)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare the rate of tensor-parallel collectives between hosts with the link inside one."""
        measures = collectives.compute(tables)
        rows = measures.points.matches("axis", str(Axis.TP)) & measures.points.inter_node
        if not rows.any() or not measures.link_peak > 0:
            return
        measured = float(np.median(measures.points.busbw[rows]))
        faster = REACHED * measures.link_peak / measured
        if faster > 1:
            graph = graph_of(tables)
            yield Draft(
                "tensor parallelism spans hosts: tp groups leave the fast links",
                {"axis": str(Axis.TP)},
                {
                    "calls": int(rows.sum()),
                    "bus_bytes_per_second": measured,
                    "link_bytes_per_second": measures.link_peak,
                }
                | dict(longest(graph, graph.on_axis(Axis.TP), graph.transfer)),
                Edit("comm_faster", f"{faster:.3g}", (("axis", str(Axis.TP)),)),
                "keep tensor parallelism inside a node",
                is_choice=True,
                rows=proof.largest("calls", "axis = 'tp' AND inter_node", "transfer_ns"),
                basis=Basis.MODELLED,
                settings={"torchtitan": "parallelism.tensor_parallel_degree", "nanotron": "parallelism.tp"},
            )
