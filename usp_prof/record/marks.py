"""Marks: a training loop says in the trace what it is doing, by ranges whose names carry the data.

Kineto drops the arguments of annotations, so a mark's *name* is its data (the grammar is in `usp_prof.contract`).
Every helper is a context manager and a decorator alike, and costs about a microsecond while nothing is recorded.

In light mode, with CPU activity off, the profiler takes no time from the host for each op, but it drops annotations
too. The recorder then notes steps and marks itself: name, thread, begin and end, on the clock that a trace counts by
(nanoseconds since 1970). At export they become events as Kineto writes annotations, and whatever reads the trace finds
steps and marks as ever.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import ContextDecorator
from typing import TYPE_CHECKING, Self

import torch
from torch.profiler import record_function

from usp_prof.contract import AREAS, PIPELINE_KINDS, format_mark
from usp_prof.record._torch_private import profiler_enabled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType


TRANSFERS = ("send_f", "recv_f", "send_b", "recv_b")
"""Activation (f) and gradient (b) transfers between pipeline stages."""


class Mark(ContextDecorator):
    """A named stretch of work; enters the trace only while a window is being recorded."""

    __slots__ = ("_area", "_open", "_values", "_what")

    def __init__(self, area: str, what: str, values: dict[str, int | str]) -> None:
        self._area = area
        self._what = what
        self._values = values
        self._open: Annotation | torch.profiler.record_function | None = None

    def _recreate_cm(self) -> Mark:
        return Mark(self._area, self._what, self._values)

    def __enter__(self) -> Self:
        if not torch.compiler.is_compiling() and profiler_enabled():  # a compiled region stays one graph
            self._open = annotation(format_mark(self._area, self._what, **self._values))
            self._open.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is not None:
            self._open.__exit__(kind, error, trace)
            self._open = None


def mark(area: str, what: str, **values: int | str) -> Mark:
    """Name a stretch of work, ``area::what key=value``; the areas are those of `usp_prof.contract.AREAS`."""
    if area not in AREAS:
        raise ValueError(f"{area!r} is not an area of a mark; there are {', '.join(AREAS)}")
    for value in values.values():  # a loop: a comprehension would cost as much as the rest of the mark
        if isinstance(value, str) and value.split() != [value]:
            raise ValueError(f"a mark's values are integers or words without blanks, {value!r} is neither")
    return Mark(area, what, values)


def pipeline_action(kind: str, *, stage: int, micro_batch: int) -> Mark:
    """Name a pipeline action: F forward, B full backward, I input gradient, W weight gradient."""
    if kind not in PIPELINE_KINDS:
        raise ValueError(f"{kind!r} is not a pipeline action; there are {', '.join(PIPELINE_KINDS)}")
    return Mark("pp", kind, {"stage": stage, "mb": micro_batch})


def pipeline_transfer(what: str, *, stage: int, micro_batch: int, peer: int) -> Mark:
    """Name a transfer between stages (`TRANSFERS`) with the global rank of the peer; NCCL says nothing about these."""
    if what not in TRANSFERS:
        raise ValueError(f"{what!r} is not a pipeline transfer; there are {', '.join(TRANSFERS)}")
    return Mark("pp", what, {"stage": stage, "mb": micro_batch, "peer": peer})


def phase(name: str) -> Mark:
    """Name a phase of the step: forward, backward, fwd_bwd, optimizer, grad_norm, log, input, checkpoint."""
    return Mark("train", name, {})


def ring_step(step: int) -> Mark:
    """Name one exchange of keys and values with the neighbours in a context-parallel ring."""
    return Mark("cp", "ring_send_recv", {"step": step})


def ring_wait(step: int | None = None) -> Mark:
    """Name the wait for a ring exchange that was posted before, with the number of its ring step."""
    return Mark("cp", "ring_wait", {} if step is None else {"step": step})


def expert_dispatch() -> Mark:
    """Name the exchange that brings tokens to their experts."""
    return Mark("ep", "dispatch", {})


def expert_combine() -> Mark:
    """Name the exchange that brings tokens back from their experts."""
    return Mark("ep", "combine", {})


def expert_load(tokens: int, experts: Sequence[int] = ()) -> Mark:
    """Name the experts' computation with the number of tokens that arrived here (a number known on the host).

    `experts` says how many each of this rank's experts got, in order, where the host knows.
    """
    counts = {"experts": ",".join(map(str, experts))} if experts else {}
    return Mark("ep", "load", {"tokens": tokens, **counts})


def sharding(what: str) -> Mark:
    """Name a phase of sharded data parallelism written by hand: zero1_reduce_scatter, zero1_all_gather, ..."""
    return Mark("dp", what, {})


# Light mode: what the recorder notes by itself.


class Notes:
    """The steps and marks of one window."""

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: list[tuple[str, int, int, int]] = []  # name, thread, begin and end in ns; in order of their ends

    def add(self, name: str, thread: int, begin_ns: int, end_ns: int) -> None:
        """Note a stretch that is over."""
        self._noted.append((name, thread, begin_ns, end_ns))

    def events(self, base_ns: int) -> Iterator[str]:
        """Yield each mark as a trace event, in microseconds since `base_ns`."""
        process = os.getpid()
        for name, thread, begin_ns, end_ns in self._noted:
            where = {"ph": "X", "cat": "user_annotation", "name": name, "pid": process, "tid": thread}
            yield json.dumps({**where, "ts": (begin_ns - base_ns) / 1e3, "dur": (end_ns - begin_ns) / 1e3, "args": {}})


class Annotation:
    """A named stretch, noted when it ends; stands in for `record_function`."""

    __slots__ = ("_began_ns", "_name", "_notes")

    def __init__(self, name: str, notes: Notes) -> None:
        self._name = name
        self._notes = notes
        self._began_ns = 0

    def __enter__(self) -> None:
        self._began_ns = time.time_ns()

    def __exit__(self, *_: object) -> None:
        self._notes.add(self._name, threading.get_native_id(), self._began_ns, time.time_ns())


_open: Notes | None = None
"""The notes of the window that is recorded in light mode; None: the profiler takes the marks."""


def begin_notes() -> Notes:
    """Let steps and marks be noted from now on; there is one window at a time, as there is one profiler."""
    global _open  # noqa: PLW0603 - marks are made anywhere in the program
    _open = Notes()
    return _open


def end_notes() -> None:
    """Leave steps and marks to the profiler again."""
    global _open  # noqa: PLW0603
    _open = None


def annotation(name: str) -> Annotation | record_function:
    """Name a stretch of the program: in our own notes in light mode, else to the profiler."""
    return record_function(name) if _open is None else Annotation(name, _open)
