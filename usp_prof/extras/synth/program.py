"""Program: the actions of one rank in order, as a generator that stops when it needs the end of a call."""

from __future__ import annotations

import re
from collections.abc import Iterator

from usp_prof import contract
from usp_prof.extras.synth.declaration import Declaration, Work, check
from usp_prof.extras.synth.history import BACKWARD, MAIN, ActionTime, Call, Exchange, Part, RankLog
from usp_prof.extras.synth.mesh import Topology
from usp_prof.extras.synth.ops import Catalog, Uneven
from usp_prof.extras.synth.worker import Gradients, Worker
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.schedule import Schedule, Shape, schedule_by_name
from usp_prof.schedule_orders import Action, Kind, Order, order

_ACTION = re.compile(r"(?P<stage>\d*)(?P<kind>[FBIW])(?P<micro_batch>\d+)\Z")


def orders(work: Work, ranks: int) -> Order:
    """Return each pipeline rank's actions in order."""
    if work.order:
        return tuple(tuple(_action(word, rank) for word in text.split()) for rank, text in enumerate(work.order))
    schedule = schedule_by_name(work.schedule)
    if schedule is None:
        raise unknown_name("schedule", work.schedule, Schedule)
    return order(schedule, Shape(ranks, work.micro_batches, work.virtual_stages))


def _action(word: str, rank: int) -> Action:
    """Parse an action; without a stage it is the rank's own."""
    match = _ACTION.match(word)
    if match is None:
        raise UsageError(f"{word!r} is not a pipeline action", hint="write F0, B0, I0, W0, or 3F0 for stage 3")
    return Action(int(match["stage"] or rank), Kind(match["kind"]), int(match["micro_batch"]))


# Setting: data shared by all ranks (mesh, ops, order of actions, and calls).


class Setting:
    """The prepared run, before any rank starts."""

    def __init__(self, run: Declaration) -> None:
        check(run)
        self.run = run
        self.topology = Topology(run.mesh)
        self.catalog = Catalog(run)
        self.orders = orders(run.work, run.mesh.pp)
        self.stage_of = {action.stage: rank for rank, order in enumerate(self.orders) for action in order}
        self.exchange = Exchange(run)


# Program: one rank's steps.


_INPUT_BYTES = 8
_HALVES = {"F": "F", "B": "IW", "I": "I", "W": "W"}
"""Parts of a full backward."""
_NODE = "autograd::engine::evaluate_function: MmBackward0"
"""Name of a layer's backward in autograd, by which readers distinguish backward from forward."""


class Program:
    """One rank's steps: pipeline actions, their layers, and the communication of each axis."""

    def __init__(self, setting: Setting, rank: int) -> None:
        self.rank = rank
        self._run = setting.run
        self._topology = setting.topology
        self._groups = setting.topology.by_rank[rank]
        self._catalog = setting.catalog
        self._stage_of = setting.stage_of
        self._exchange = setting.exchange
        self._place = setting.topology.coordinates(rank)["pp"]
        self._order = setting.orders[self._place]
        self._last_stage = max(setting.stage_of)
        self._layers = self._run.shape.layers // len(setting.stage_of)
        self._done = 0  # completed actions of this step
        self._worker = Worker(self._run, setting.exchange, rank)
        self._uneven = Uneven(self._run, self._topology, rank)
        self._gradients = Gradients(self._run, self._catalog, self._worker, setting.exchange, self._groups)

    @property
    def log(self) -> RankLog:
        """The rank's log."""
        return self._worker.log

    def steps(self) -> Iterator[Call]:
        """Run all steps."""
        worker = self._worker
        for number in range(self._run.work.steps):
            worker.step = self._run.work.first_step + number
            begin = worker.host
            worker.load_input(self._run.shape.sequence * _INPUT_BYTES)
            self._gradients.begin(self._order)
            for place, action in enumerate(self._order):
                if place == len(self._order) // 2:
                    worker.pause()
                self._done = place
                yield from self._act(action)
            yield from self._optimize()
            worker.read_back()
            worker.span(f"ProfilerStep#{worker.step}", "user_annotation", begin)
            worker.log.steps.append((worker.step, begin, worker.host))
        worker.watch()

    def _act(self, action: Action) -> Iterator[Call]:
        """Run one action: receive, compute with its collectives, send."""
        worker, forward = self._worker, action.kind == "F"
        source, target = action.stage + (-1 if forward else 1), action.stage + (1 if forward else -1)
        if action.kind != "W" and source in self._stage_of:
            yield from self._transfer("recv", action, source)
        begin = worker.host
        worker.action = ActionTime(worker.step, action.kind, action.stage, action.micro_batch)
        worker.thread = MAIN if forward or not worker.ahead else BACKWARD
        last = self._gradients.count(action)
        self._head(action, "IW")
        for layer in range(self._layers):
            worker.pause_between_launches(self._layers * self._done + layer, self._layers * len(self._order))
            yield from self._gradients.gather(action, layer, self._layers)
            node = worker.host
            yield from self._layer(action)
            if not forward:
                worker.span(_NODE, "cpu_op", node)
            if last:
                yield from self._gradients.reduce()
        self._head(action, "F")
        worker.log.actions.append(worker.action)
        worker.action, worker.thread = None, MAIN
        mark = contract.format_mark("pp", action.kind, stage=action.stage, mb=action.micro_batch)
        worker.span(mark, "user_annotation", begin)
        worker.end_action()
        if action.kind != "W" and target in self._stage_of:
            yield from self._transfer("send", action, target)

    def _layer(self, action: Action) -> Iterator[Call]:
        """Run one layer of an action: its blocks, each ended by the axis that splits it."""
        speed, catalog = self._run.speed, self._catalog
        factor = speed.last_stage_factor if action.stage == self._last_stage else 1.0
        if action.kind != "W" and "cp" in self._groups:
            yield from self._collective("all_gather", "cp", catalog.key_value_bytes * self._run.mesh.cp)
        again = "F" * self._run.work.recompute if action.kind in "BI" else ""
        for half in again + _HALVES[action.kind]:
            blocks, length = {
                "F": (catalog.forward, speed.forward_ns),
                "I": (catalog.input_gradient, speed.input_gradient_ns),
                "W": (catalog.weight_gradient, speed.weight_gradient_ns),
            }[half]
            for number, block in enumerate(blocks):
                feed = number == (1 if half == "F" else 0)
                routed = half != "W" and feed and "ep" in self._groups
                if routed:
                    yield from self._route()
                share = self._uneven.share(self._worker.step, action.micro_batch, feeds=feed)
                self._worker.compute(block, length * factor * block.share * share)
                if routed:
                    yield from self._route()
                if half != "W" and "tp" in self._groups:
                    yield from self._collective("all_reduce", "tp", catalog.activation_bytes)

    def _head(self, action: Action, parts: str) -> None:
        """Run the output layer: after the last layer in forward, before it in backward."""
        if action.stage == self._last_stage and self._run.speed.head_ns:
            for half in _HALVES[action.kind]:
                if half in parts:
                    self._worker.compute(self._catalog.head(half), float(self._run.speed.head_ns))

    def _route(self) -> Iterator[Call]:
        """Send tokens to their experts, or return them."""
        size = self._catalog.activation_bytes * self._run.shape.experts_per_token
        return self._collective("all_to_all", "ep", size)

    def _optimize(self) -> Iterator[Call]:
        """Wait for all gradients and step."""
        yield from self._gradients.finish()
        begin = self._worker.host
        for block in self._catalog.optimizer(self._worker.optimizer_kernels()):
            self._worker.compute(block, float(self._run.speed.optimizer_ns))
        self._worker.span("Optimizer.step#AdamW.step", "user_annotation", begin)
        yield from self._gradients.share_parameters(self._layers)

    def _collective(self, op: str, axis: str, size: int) -> Iterator[Call]:
        """Run a collective and wait for its end."""
        worker, group = self._worker, self._groups[axis]
        number = worker.number(axis)
        call = self._exchange.join(op, group, (number,), group.ranks, size)
        worker.arrive(call, axis, Part(call, worker.thread, worker.host, number))
        yield call
        worker.wait(call)

    def _transfer(self, direction: str, action: Action, other: int) -> Iterator[Call]:
        """Send to or receive from the adjacent stage, unless this rank has both stages."""
        worker, peer_place = self._worker, self._stage_of[other]
        if peer_place == self._place:
            return
        begin = worker.host
        peer = self._topology.stage_peer(self.rank, peer_place)
        members = (self.rank, peer) if direction == "send" else (peer, self.rank)
        letter = "f" if action.kind == "F" else "b"
        origin = action.stage if direction == "send" else other
        key = (worker.step, origin, action.micro_batch)
        size = self._catalog.activation_bytes
        call = self._exchange.join(f"send_recv_{letter}", self._groups["pp"], key, members, size)
        part = Part(call, MAIN, worker.host, worker.number("pp"), peer, direction)
        worker.arrive(call, f"pp {direction} {letter} {peer}", part)
        if direction == "recv":
            yield call
            worker.wait(call)
        name = f"{direction}_{letter}"
        mark = contract.format_mark("pp", name, stage=action.stage, mb=action.micro_batch, peer=peer)
        worker.span(mark, "user_annotation", begin)
