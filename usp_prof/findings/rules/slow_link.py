"""One group's link is slower than its peers'.

What it finds
    A process group whose transfers (the time after the last member has arrived) take at least 1.2 times as long as
    those of the other groups of its axis, for the same operation and the same bytes, and whose repair would shorten the
    step by 1 % or more. Where an axis has only one group there is nothing to compare it with.

Why it costs time
    A collective is as fast as its slowest link: a port that trained down, a congested switch, a ring that leaves its
    node, a rank placed in another rack.

What to do
    Test the group's links (`nccl-tests`, `ibstat`, `nvidia-smi nvlink -s`), look at `NCCL_DEBUG=INFO` for the rings and
    at the placement of its ranks; drain the node.
    torchtitan, Megatron-LM, nanotron and DeepSpeed have no setting for it; our trainer makes one with `--fault
    slow-link`.

How the gain is predicted
    The run is replayed with this group's transfers as fast as the median of the other groups' (`link_as_peers`).

When it is wrong
    When the group lies across nodes by design and the others do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.findings import proof
from usp_prof.findings.draft import Draft
from usp_prof.model.edit import Edit
from usp_prof.replay.peers import group_word, link_slowness

if TYPE_CHECKING:
    from collections.abc import Iterable

    from usp_prof.tables.table_set import TableSet

CODE = "slow-link"
TITLE = "A group's link is slower than its peers'"
SLOW = 1.2


def look(tables: TableSet) -> Iterable[Draft]:
    """Compare each group's transfers with those of the others of its axis."""
    for each in link_slowness(tables):
        if each.ratio >= SLOW:
            members = each.group.partition("@")[2] or each.group
            yield Draft(
                f"{each.axis} group {members} transfers {each.ratio:.1f} times as long as its peers",
                {"axis": each.axis, "group": each.group},
                {"ratio": each.ratio, "calls": each.calls, "extra_ns": each.extra_ns},
                Edit("link_as_peers", group_word(each.group)),
                "test the group's links and the placement of its ranks",
                least_gain=0.01,
                # Its calls beside those of its peers, of the same operation and size.
                rows='SELECT "group", op, bytes, count(*) AS calls, median(transfer_ns) AS transfer_ns FROM calls '
                f"WHERE {proof.equals('axis', each.axis)} AND transfer_ns >= 0 "
                'GROUP BY "group", op, bytes ORDER BY transfer_ns DESC, "group"',
            )
