"""Data-parallel communication: all-reduce of gradients, or ZeRO's reduce-scatters and all-gathers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.synth.history import Part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from usp_prof.schedule_orders import Action
    from usp_prof.synth.declaration import Declaration
    from usp_prof.synth.history import Call, Exchange
    from usp_prof.synth.mesh import Group
    from usp_prof.synth.ops import Catalogue
    from usp_prof.synth.worker import Worker

_SHARDED_PARAMETERS = 3


class Gradients:
    """One rank's data-parallel communication, a layer a bucket.

    Without ZeRO gradients are all-reduced; with it they are reduce-scattered, and parameters gathered after the
    optimizer (stages 1 and 2) or before each layer forward and backward, one layer ahead (stage 3).
    """

    def __init__(
        self, run: Declaration, catalogue: Catalogue, worker: Worker, exchange: Exchange, groups: Mapping[str, Group]
    ) -> None:
        self._stage = run.work.zero_stage
        self._overlap = run.work.overlap_dp
        self._size = catalogue.layer_parameters * catalogue.element_bytes // run.mesh.tp
        self._worker = worker
        self._exchange = exchange
        self._group = groups.get("dp")
        self._pending: list[Call] = []
        self._ahead: Call | None = None
        self._left: dict[int, int] = {}

    def begin(self, order: Sequence[Action]) -> None:
        """Count for each stage how many weight gradients are to come in this step."""
        self._left = {}
        for action in order:
            if action.kind in "BW":
                self._left[action.stage] = self._left.get(action.stage, 0) + 1

    def count(self, action: Action) -> bool:
        """Take an action into account; say whether it completes its stage's gradients."""
        if action.kind not in "BW":
            return False
        self._left[action.stage] -= 1
        return self._left[action.stage] == 0

    def gather(self, action: Action, layer: int, layers: int) -> Iterator[Call]:
        """Bring a layer's parameters before it runs, and ask for the next layer's."""
        if self._group is None or self._stage < _SHARDED_PARAMETERS or action.kind == "W":
            return
        current = self._ahead or self._post(self._group, "all_gather", self._size, overlapped=False)
        self._ahead = None
        yield current
        self._worker.wait(current)
        if layer + 1 < layers and self._overlap:
            self._ahead = self._post(self._group, "all_gather", self._size, overlapped=True)

    def reduce(self) -> Iterator[Call]:
        """Reduce one layer's gradients; wait at once unless that may overlap."""
        if self._group is None:
            return
        call = self._post(
            self._group, "reduce_scatter" if self._stage else "all_reduce", self._size, overlapped=self._overlap
        )
        self._pending.append(call)
        if not self._overlap:
            yield call
            self._worker.wait(call)

    def finish(self) -> Iterator[Call]:
        """Wait for all gradients."""
        for call in self._pending:
            yield call
            self._worker.wait(call)
        self._pending.clear()

    def share_parameters(self, layers: int) -> Iterator[Call]:
        """Give the stepped shards to everyone, where they are not gathered layer by layer."""
        if self._group is not None and 0 < self._stage < _SHARDED_PARAMETERS:
            call = self._post(self._group, "all_gather", self._size * layers, overlapped=False)
            yield call
            self._worker.wait(call)

    def _post(self, group: Group, op: str, size: int, *, overlapped: bool) -> Call:
        number = self._worker.number("dp")
        call = self._exchange.join(op, group, (number,), group.ranks, size)
        part = Part(call, self._worker.thread, self._worker.host, number, blocking=not overlapped)
        self._worker.arrive(call, f"dp {op}", part)
        return call
