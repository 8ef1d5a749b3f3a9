"""Rules on links: a slow one, unused bandwidth, latency paid many times, tensor parallelism over slow links."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from usp_prof.analyses import collectives
from usp_prof.columns.rows import distinct, rows_by_code
from usp_prof.findings import proof
from usp_prof.findings.draft import Draft, Input
from usp_prof.findings.proof import longest
from usp_prof.findings.slow_axes import slow_axes
from usp_prof.model.edit import Edit
from usp_prof.model.finding import Basis
from usp_prof.model.rule_code import RuleCode
from usp_prof.model.topology import DATA_AXES, Axis
from usp_prof.replay.build import graph_of
from usp_prof.tables import calls
from usp_prof.tables.table_set import TableSet
from usp_prof.whatif.link_speeds import group_word, link_slowness

SLOW_LINK = 1.2


class SlowLink:
    """A link is slower than its peers, or than any network.

    What it finds
        A process group or an axis whose transfers (the time after the last participant arrives) are slow. If the
        bandwidth of the device's link is known, only groups are checked here, and `low-bandwidth` checks axes.
        - A group takes at least 1.2 times as long as the other groups of its axis for the same operation and size, and
          its repair would shorten the step by at least 1%. Pairs of ranks that send and receive are compared in the
          same way, except over gloo.
        - A whole axis takes at least 1.5 times as long as over gigabit Ethernet, in three quarters of the calls of its
          best group. Gigabit Ethernet takes the bytes at 125 MB/s, plus the latency of the best quarter of small
          messages on other axes.
        - An axis whose median message has at most 64 KB takes at least 4 times as long as small messages on other axes.
        - The busiest link of an axis is busy at least 4 times as long as the messages of a step would take one after
          the other over gigabit Ethernet.

    Why it costs time
        A collective is as fast as its slowest link: a port at reduced speed, a congested switch, a ring that leaves its
        node, or a rank in another rack.

    What to do
        Test the group's links (`nccl-tests`, `ibstat`, `nvidia-smi nvlink -s`), check rings and rank placement with
        `NCCL_DEBUG=INFO`, and drain the node.
        - torchtitan, Megatron-LM, nanotron, DeepSpeed: no setting.
        - our trainer: `--fault slow-link` reproduces it.

    How the gain is predicted
        A slow group or pair is replayed with transfers as fast as the median of the others (`link_as_peers`). A slow
        axis is replayed at the speed of gigabit Ethernet (`comm_faster`), so a better network saves more.

    When it is wrong
        If the group spans nodes by design and the others do not, or if ranks that share cores cannot send.
    """

    CODE = RuleCode.SLOW_LINK
    TITLE = "A link is slower than its peers, or than any network"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare each group's transfers with those of its axis' others, and each axis with gigabit Ethernet."""
        if not collectives.compute(tables).link_peak > 0:
            yield from slow_axes(tables)
        for link in link_slowness(tables):
            if link.ratio >= SLOW_LINK:
                members = link.group.partition("@")[2] or link.group
                slower = f"{link.ratio:.1f}x as long as in other groups of the axis"
                yield Draft(
                    f"Transfers among ranks {members} ({link.axis}) take {slower}",
                    {"axis": link.axis, "group": link.group},
                    {"ratio": link.ratio, "calls": link.calls, "extra_ns": link.extra_ns},
                    Edit("link_as_peers", group_word(link.group)),
                    f"Run nccl-tests among ranks {members}; check their placement",
                    least_gain=0.01,
                    # Its calls and those of its peers, by operation and size.
                    rows='SELECT "group", op, bytes, count(*) AS calls, median(transfer_ns) AS transfer_ns FROM calls '
                    f"WHERE {proof.equals('axis', link.axis)} AND transfer_ns >= 0 "
                    'GROUP BY "group", op, bytes ORDER BY transfer_ns DESC, "group"',
                )


LARGE_BYTES = 16_000_000
LATENCY_NS = 100_000
"""Time that a collective inside a node may take for any size; nccl-tests report tens of microseconds."""
LONG = 3
"""Multiple of the latency from which a transfer is long."""
LOW_SHARE = 1 / 3
REACHABLE_SHARE = 0.75
FEWEST_LARGE = 3


class LowBandwidth:
    """Large collectives are far below the link bandwidth.

    What it finds
        Collectives inside a node that have at least 16 MB or take at least 0.3 ms, whose bus bandwidth is below a third
        of the device's link, if three quarters of the link would shorten the step by at least 2%. Healthy collectives
        reach 50 to 90%. A latency of 0.1 ms does not count. If all are smaller, it is no more than a note. Of several
        groups of an axis the best one counts, because one slow group is a `slow-link`. Processes that share a device
        are not compared.

    Why it costs time
        At these sizes, a collective takes its bytes divided by the bandwidth. Less than a third usually means a
        fallback to PCIe or sockets, a failed link or a poor algorithm.

    What to do
        Check `nvidia-smi topo -m`, `nvidia-smi nvlink -s` and `NCCL_DEBUG=INFO` (transport and algorithm per channel),
        and run `nccl-tests`. Make sure that `NCCL_P2P_DISABLE`, `NCCL_ALGO`, `NCCL_PROTO` and `NCCL_MAX_NCHANNELS` are
        unset and that fast axes stay inside a node.
        - Megatron-LM: `--nccl-communicator-config-path` sets NCCL options per group.
        - DeepSpeed: `.deepspeed_env` sets them per node.
        - torchtitan, nanotron, our trainer: NCCL's environment variables.

    How the gain is predicted
        The run is replayed with the axis' transfers at three quarters of the link (`comm_faster`): modeled.

    When it is wrong
        If the device's link differs from the device table, such as a PCIe board or half the links.
    """

    CODE = RuleCode.LOW_BANDWIDTH
    TITLE = "Large collectives are far below the link bandwidth"
    NEEDS = (Input.ALL_RANKS, Input.ONE_CLOCK)

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Compare each axis' large collectives with the link."""
        measures = collectives.compute(tables)
        shares = tables.manifest is not None and tables.manifest.processes_per_device > 1
        if shares or not measures.link_peak > 0:
            return
        points = measures.points
        # A long transfer takes its time on the link, even if the message is small.
        is_large = (points.bytes >= LARGE_BYTES) | (points.transfer_ns >= LONG * LATENCY_NS)
        large = is_large & ~points.inter_node & ~points.matches("axis", "pp")
        bandwidth = points.busbw * points.transfer_ns / np.maximum(points.transfer_ns - LATENCY_NS, 1)
        codes, axes = points.texts["axis"]
        for axis in sorted({axes[code] for code in distinct(codes[large]).tolist()}):
            rows = np.flatnonzero(large & points.matches("axis", axis))
            groups = rows_by_code(points.texts["group"][0][rows])
            by_group = [float(np.median(bandwidth[rows[places]])) for places in groups.values()]
            # The best group tells what the axis reaches: one that is slower than the others is a slow link.
            measured = max(by_group)
            if len(rows) < FEWEST_LARGE or measured >= LOW_SHARE * measures.link_peak:
                continue
            graph = graph_of(tables)
            yield Draft(
                f"Collectives on {axis} reach {100 * measured / measures.link_peak:.0f}% of the link bandwidth",
                {"axis": axis},
                {
                    "calls": len(rows),
                    "median_bytes": float(np.median(points.bytes[rows])),
                    "bus_bytes_per_second": measured,
                    "link_bytes_per_second": measures.link_peak,
                    **longest(graph, graph.on_axis(axis), graph.transfer),
                },
                Edit("comm_faster", f"{REACHABLE_SHARE * measures.link_peak / measured:.3g}", (("axis", axis),)),
                "Check the transport and algorithm that NCCL selected, and the links",
                # Small messages may take long for a reason that is not the link.
                opportunity=not (points.bytes[rows] >= LARGE_BYTES).any(),
                covers=(RuleCode.SLOW_LINK,),
                basis=Basis.MODELLED,
                rows=proof.largest(
                    "calls",
                    f"{proof.equals('axis', axis)} AND NOT inter_node AND "
                    f"(bytes >= {LARGE_BYTES} OR transfer_ns >= {LONG * LATENCY_NS})",
                    "transfer_ns",
                ),
                settings={"NCCL": "NCCL_DEBUG=INFO"},
            )


SMALL_BYTES = 1_000_000
FEWEST_SMALL = 10


class SmallMessages:
    """Many small collectives cost latency instead of bandwidth.

    What it finds
        A data-parallel axis with at least ten collectives below 1 MB per step, if bucketing them would shorten the step
        by at least 2%. The reference is the bandwidth of the axis' large collectives, or one message for all.

    Why it costs time
        Below about a megabyte, the time of a collective hardly depends on its size: it is launches, hops and
        handshakes.

    What to do
        Combine them into larger messages.
        - DDP: `bucket_cap_mb`; FSDP: wrap whole blocks.
        - torchtitan: wrap whole blocks (default).
        - Megatron-LM: `--ddp-bucket-size`.
        - DeepSpeed: `reduce_bucket_size`, `allgather_bucket_size`.
        - nanotron: its gradient accumulator uses one bucket.
        - our trainer: `--bucket-mb`.

    How the gain is predicted
        The run is replayed with each small transfer at the median bandwidth of the axis' large ones (`bucketed`):
        modeled, because no trace contains the bucketed call. Without large ones, one megabyte of small calls takes as
        long as one call.

    When it is wrong
        If each small collective is needed immediately and no other is ready at the same time.
    """

    CODE = RuleCode.SMALL_MESSAGES
    TITLE = "Many small collectives cost latency instead of bandwidth"

    @staticmethod
    def look(tables: TableSet) -> Iterable[Draft]:
        """Count each axis' small collectives."""
        columns = calls.match_calls(tables).columns()
        steps = max((len(tables.columns("steps", rank)) for rank in tables.ranks), default=0)
        # The other axes need each message before the next can be made: there is nothing to bucket.
        for axis in DATA_AXES:
            rows = columns.matches("axis", str(axis)) & (columns["bytes"] > 0) & (columns["bytes"] < SMALL_BYTES)
            number = int(rows.sum()) / max(steps, 1)
            if number < FEWEST_SMALL:
                continue
            yield Draft(
                f"{number:.0f} small {axis} collectives per step cost latency",
                {"axis": str(axis)},
                {"calls_per_step": number, "bytes": int(columns["bytes"][rows].sum())},
                Edit("bucketed", str(SMALL_BYTES), (("axis", str(axis)),)),
                "Combine them in larger buckets",
                covers=(RuleCode.SLOW_LINK,),
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
"""Share of the link's bandwidth that large collectives inside a node usually reach."""


class WideTensorParallel:
    """Tensor parallelism spans hosts.

    What it finds
        Groups of the axis `tp` with ranks on several hosts, on a device whose link is in the device table, if that
        link's bandwidth would shorten the step by at least 2%.

    Why it costs time
        NVLink moves hundreds of GB/s inside a node; a network card moves some tens. Tensor parallelism has the most
        traffic of all axes, and little independent compute that could hide it.

    What to do
        Keep the degree at or below the number of devices per node, and let this axis vary fastest over ranks. Use
        pipeline or data parallelism across nodes.
        - torchtitan: `parallelism.tensor_parallel_degree`.
        - Megatron-LM: `--tensor-model-parallel-size`.
        - nanotron: `parallelism.tp`.
        - DeepSpeed: the degree of its `mpu`.
        - our trainer: `--tp`.

    How the gain is predicted
        The run is replayed with the axis' transfers at three quarters of the device's link, as large collectives inside
        a node reach it (`comm_faster`): modeled.

    When it is wrong
        If fast links span several nodes (NVL72), or host names are those of containers on one machine.
    """

    CODE = RuleCode.WIDE_TENSOR_PARALLEL
    TITLE = "Tensor parallelism spans hosts"
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
                "Tensor parallelism spans hosts and leaves the fast links",
                {"axis": str(Axis.TP)},
                {
                    "calls": int(rows.sum()),
                    "bus_bytes_per_second": measured,
                    "link_bytes_per_second": measures.link_peak,
                }
                | dict(longest(graph, graph.on_axis(Axis.TP), graph.transfer)),
                Edit("comm_faster", f"{faster:.3g}", (("axis", str(Axis.TP)),)),
                "Keep tensor parallelism inside a node",
                is_choice=True,
                rows=proof.largest("calls", "axis = 'tp' AND inter_node", "transfer_ns"),
                basis=Basis.MODELLED,
                settings={"torchtitan": "parallelism.tensor_parallel_degree", "nanotron": "parallelism.tp"},
            )
