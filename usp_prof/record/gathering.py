"""Gathering: rank 0 learns what the others know, without a collective that could hang or disturb a step.

Each rank leaves its part in the key-value store that every process group already has. Rank 0 reads what is there; at
the end it waits for the rest, never longer than a time limit, so a rank that died costs its part and nothing else.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

_KEY = "usp_prof/record"

_SHORTEST_WAIT_S = 0.01
"""A store takes a time limit of less than a millisecond for none, and would wait for ever."""


@dataclass(slots=True)
class Part:
    """What one rank alone knows."""

    rank: int
    host: str = ""
    device: str = ""
    device_key: str = ""
    coordinates: dict[str, int] = field(default_factory=dict)
    stages: list[int] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    join_rate: float | None = None
    notes: list[str] = field(default_factory=list)
    final: bool = False


class Exchange:
    """The parts of all ranks of one session."""

    def __init__(self, world: int, session: int, store: Any | None) -> None:  # noqa: ANN401 - a torch Store, untyped
        self._world = world
        self._session = session
        self._store = store
        self._own: Part | None = None

    def leave(self, part: Part) -> None:
        """Leave this rank's part for rank 0; a later one replaces it."""
        self._own = part
        if self._store is not None and part.rank != 0:
            self._store.set(self._key(part.rank, final=part.final), json.dumps(asdict(part)))

    def collect(self, *, wait_seconds: float) -> dict[int, Part]:
        """Give the parts by rank: final ones as far as they arrive in time, else the latest that is there."""
        parts = {self._own.rank: self._own} if self._own is not None else {}
        deadline = time.monotonic() + wait_seconds
        for rank in range(self._world):
            if rank not in parts and self._store is not None:
                part = self._read(rank, final=True, wait_seconds=max(0.0, deadline - time.monotonic()))
                part = part or self._read(rank, final=False, wait_seconds=0.0)
                if part is not None:
                    parts[rank] = part
        return parts

    def _read(self, rank: int, *, final: bool, wait_seconds: float) -> Part | None:
        key = self._key(rank, final=final)
        store = self._store
        if store is None:
            return None
        try:
            if not store.check([key]):
                if wait_seconds < _SHORTEST_WAIT_S:
                    return None
                store.wait([key], timedelta(seconds=wait_seconds))
            return Part(**json.loads(store.get(key)))
        except RuntimeError:  # the store's time limit, or its host is gone
            return None

    def _key(self, rank: int, *, final: bool) -> str:
        return f"{_KEY}/{self._session}/{rank}/{'final' if final else 'start'}"
