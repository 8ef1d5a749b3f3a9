"""Trace text: read a few events of a large trace and add to them, without changing any other byte of the file.

The text is decoded as latin-1, one character per byte, so positions are bytes and rewriting is exact for any names.
Only the requested events are parsed; additions are inserted before an event's arguments, as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ENCODING = "latin-1"

_DECODER = json.JSONDecoder()
_ARGUMENTS = re.compile(r'"args"\s*:\s*\{')
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_END_OF_LIST = re.compile(r"\s*\]")
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d+)')


@dataclass(frozen=True, slots=True)
class TextEvent:
    """Event and its position in the text."""

    start: int
    end: int
    name: str
    thread: int
    start_ns: int
    duration_ns: int
    args: Mapping[str, Any]

    @property
    def end_ns(self) -> int:
        """End time in ns."""
        return self.start_ns + self.duration_ns


def find_events(text: str, name_prefixes: Iterable[str]) -> list[TextEvent]:
    """Parse the complete events with one of the name prefixes, in file order; times are since the epoch."""
    base = base_ns(text)
    pattern = re.compile(r'"name"\s*:\s*"(?:' + "|".join(map(re.escape, name_prefixes)) + ")")
    events = (_event(text, match.start(), base) for match in pattern.finditer(text))
    return [event for event in events if event is not None]


def base_ns(text: str) -> int:
    """Return the time from which the trace counts its times; 0 if missing."""
    base = _BASE.search(text)
    return int(base[1]) if base else 0


def edited(text: str, additions: Mapping[int, Mapping[str, Any]], events: Iterable[TextEvent]) -> Iterator[str]:
    """Yield the text in pieces, with `additions` (by index in `events`) inserted before their arguments."""
    places = sorted((event.start, event.end, index) for index, event in enumerate(events) if index in additions)
    done = 0
    for start, end, index in places:
        arguments = _ARGUMENTS.search(text, start, end)
        fields = json.dumps(additions[index])[1:-1]
        if arguments is None:
            yield text[done : end - 1] + f', "args": {{{fields}}}'
            done = end - 1
        else:
            empty = text[arguments.end() : end].lstrip().startswith("}")
            yield text[done : arguments.end()] + fields + ("" if empty else ", ")
            done = arguments.end()
    yield text[done:]


def with_metadata(text: str, key: str, value: str) -> str:
    """Replace the value of a top-level key before the events; without such a key nothing changes."""
    events_at = text.find('"traceEvents"')
    place = re.search(rf'"{re.escape(key)}"\s*:\s*', text if events_at < 0 else text[:events_at])
    if place is None:
        return text
    _, end = _DECODER.raw_decode(text, place.end())
    return text[: place.end()] + value + text[end:]


def with_events(text: str, events: Iterable[str]) -> str:
    """Insert events, each as JSON, before those of the trace; without a list of events nothing changes."""
    place = _EVENTS.search(text)
    added = ",\n".join(events)
    if place is None or not added:
        return text
    between = "" if _END_OF_LIST.match(text, place.end()) else ","
    return text[: place.end()] + added + between + text[place.end() :]


def _event(text: str, name_place: int, base: int) -> TextEvent | None:
    start = text.rfind("{", 0, name_place)
    try:
        event, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError:
        return None  # a name nested in another value; not an event
    if not isinstance(event, dict) or event.get("ph") != "X" or "ts" not in event:
        return None
    args = event.get("args")
    return TextEvent(
        start=start,
        end=end,
        name=str(event["name"]),
        thread=int(event["tid"]) if isinstance(event.get("tid"), int) else -1,
        start_ns=base + round(float(event["ts"]) * 1000),
        duration_ns=round(float(event.get("dur", 0)) * 1000),
        args=args if isinstance(args, dict) else {},
    )
