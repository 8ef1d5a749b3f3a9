"""Marks: ranges in the trace that describe the training loop's work, with data in their names.

Kineto drops the arguments of annotations, so a mark's *name* is its data (the grammar is in `usp_prof.contract`). Every
helper is both a context manager and a decorator, and costs about a microsecond while nothing is recorded.

Light mode turns CPU activity off. The profiler then takes no host time per op, but it also drops annotations. The
recorder therefore notes steps and marks: name, thread, start and end, on the trace's clock (nanoseconds since 1970).
Export writes them as events in Kineto's form of annotations, so readers find steps and marks as usual.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ContextDecorator
from types import TracebackType
from typing import Self

import torch
from torch.profiler import record_function

from usp_prof.contract import AREAS, PIPELINE_KINDS, format_mark
from usp_prof.record._torch_private import profiler_enabled, profiler_is_claimed

TRANSFERS = ("send_f", "recv_f", "send_b", "recv_b")
"""Activation (f) and gradient (b) transfers between pipeline stages."""


class Mark(ContextDecorator):
    """Named range of work; it is added to the trace only while a window is recorded."""

    __slots__ = ("_area", "_in_window", "_open", "_values", "_what")

    def __init__(self, area: str, what: str, values: dict[str, int | str]) -> None:
        self._area = area
        self._what = what
        self._values = values
        self._open: Annotation | record_function | None = None
        self._in_window = False
        """Whether our own profiler recorded when this began."""

    def _recreate_cm(self) -> Mark:
        return Mark(self._area, self._what, self._values)

    def __enter__(self) -> Self:
        if not torch.compiler.is_compiling() and profiler_enabled():  # keeps a compiled region in one graph
            self._in_window = profiler_is_claimed()
            self._open = annotation(format_mark(self._area, self._what, **self._values))
            self._open.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is not None:
            if self._in_window and profiler_enabled() and not profiler_is_claimed():
                abandon(self._open)
            else:
                self._open.__exit__(kind, error, trace)
            self._open = None


def mark(area: str, what: str, **values: int | str) -> Mark:
    """Return a mark ``area::what key=value``; areas are listed in `usp_prof.contract.AREAS`."""
    if area not in AREAS:
        raise ValueError(f"{area!r} is not an area of a mark; there are {', '.join(AREAS)}")
    for value in values.values():  # a loop: a comprehension would double the cost of a mark
        if isinstance(value, str) and value.split() != [value]:
            raise ValueError(f"a mark's values are integers or words without blanks, {value!r} is neither")
    return Mark(area, what, values)


def pipeline_action(kind: str, *, stage: int, micro_batch: int) -> Mark:
    """Return a mark for a pipeline action: F forward, B full backward, I input gradient, W weight gradient."""
    if kind not in PIPELINE_KINDS:
        raise ValueError(f"{kind!r} is not a pipeline action; there are {', '.join(PIPELINE_KINDS)}")
    return Mark("pp", kind, {"stage": stage, "mb": micro_batch})


def pipeline_transfer(what: str, *, stage: int, micro_batch: int, peer: int) -> Mark:
    """Return a mark for a transfer between stages (`TRANSFERS`) with the peer's global rank, unknown to NCCL."""
    if what not in TRANSFERS:
        raise ValueError(f"{what!r} is not a pipeline transfer; there are {', '.join(TRANSFERS)}")
    return Mark("pp", what, {"stage": stage, "mb": micro_batch, "peer": peer})


def phase(name: str) -> Mark:
    """Return a mark for a phase: forward, backward, fwd_bwd, optimizer, grad_norm, log, input, checkpoint."""
    return Mark("train", name, {})


class PhaseSwitch:
    """Phases one after another, for loops with callbacks: each phase ends when the next one begins."""

    def __init__(self) -> None:
        self._open: Mark | None = None

    def turn_to(self, name: str) -> None:
        """End the current phase and begin another one; an empty name only ends it."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = phase(name).__enter__() if name else None


def ring_step(step: int) -> Mark:
    """Return a mark for one exchange of keys and values with the neighbors in a context-parallel ring."""
    return Mark("cp", "ring_send_recv", {"step": step})


def ring_wait(step: int | None = None) -> Mark:
    """Return a mark for the wait on a ring exchange posted before, with its ring step if given."""
    return Mark("cp", "ring_wait", {} if step is None else {"step": step})


def expert_dispatch() -> Mark:
    """Return a mark for the exchange that sends tokens to their experts."""
    return Mark("ep", "dispatch", {})


def expert_combine() -> Mark:
    """Return a mark for the exchange that returns tokens from their experts."""
    return Mark("ep", "combine", {})


def expert_load(tokens: int, experts: Sequence[int] = ()) -> Mark:
    """Return a mark for the experts' computation, with the number of tokens received on this rank.

    The number must be known on the host. `experts` lists the tokens of each of this rank's experts, if known.
    """
    counts = {"experts": ",".join(map(str, experts))} if experts else {}
    return Mark("ep", "load", {"tokens": tokens, **counts})


def sharding(what: str) -> Mark:
    """Return a mark for a phase of manual sharded data parallelism: zero1_reduce_scatter, zero1_all_gather, ..."""
    return Mark("dp", what, {})


# Light mode: steps and marks noted by the recorder.


class Notes:
    """Steps and marks of one window."""

    __slots__ = ("_noted",)

    def __init__(self) -> None:
        self._noted: list[tuple[str, int, int, int]] = []  # name, thread, start and end in ns; in order of their ends

    def add(self, name: str, thread: int, begin_ns: int, end_ns: int) -> None:
        """Add a range that has ended."""
        self._noted.append((name, thread, begin_ns, end_ns))

    def events(self, base_ns: int) -> Iterator[str]:
        """Yield each mark as a trace event, in microseconds since `base_ns`."""
        process = os.getpid()
        for name, thread, begin_ns, end_ns in self._noted:
            where = {"ph": "X", "cat": "user_annotation", "name": name, "pid": process, "tid": thread}
            yield json.dumps({**where, "ts": (begin_ns - base_ns) / 1e3, "dur": (end_ns - begin_ns) / 1e3, "args": {}})


class Annotation:
    """Named range, noted when it ends; replaces `record_function` in light mode."""

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
"""Notes of the window recorded in light mode; None if the profiler records the marks."""


def begin_notes() -> Notes:
    """Start noting steps and marks, and return the notes; there is one window at a time, like the profiler."""
    global _open  # noqa: PLW0603 - marks are made anywhere in the program
    _open = Notes()
    return _open


def end_notes() -> None:
    """Stop noting; steps and marks go to the profiler again."""
    global _open  # noqa: PLW0603
    _open = None


def abandon(annotation: Annotation | record_function) -> None:
    """Leave a range open for good, because another profiler replaced the one it began under.

    Its end, also the one in its destructor, would write to the memory that the replaced profiler has freed.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(annotation))


def annotation(name: str) -> Annotation | record_function:
    """Return a named range: noted by the recorder in light mode, else recorded by the profiler."""
    return record_function(name) if _open is None else Annotation(name, _open)
