"""Salvage of damaged JSON: every complete event, and every complete field next to the events.

It is slow and careful and works event by event. Only pieces that the fast decoder rejected are processed here.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from usp_prof.inputs.argument_decoder import DECODE_ERRORS
from usp_prof.inputs.kineto import wire

_FIELD = r'"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"'
_EVENT_START = re.compile(r"\{\s*" + _FIELD + r"\s*:")
_SEAM = re.compile(r"\}\s*,?\s*(?=\{\s*" + _FIELD + r"\s*:)")
_BLANK = re.compile(r"[\s,]*")
_NEXT_FIELD = re.compile(r',\s*(?="(?:[^"\\]|\\.){1,200}"\s*:)')
_KEY = re.compile(r'\s*"((?:[^"\\]|\\.){1,200})"\s*:\s*')
_TRIES = 12
_FAILURES = (ValueError, RecursionError, OverflowError)

_LENIENT = json.JSONDecoder(strict=False)


@dataclass(slots=True)
class Salvage:
    """What was salvaged from one piece of text."""

    events: list[Any] = field(default_factory=list)
    used: int = 0
    """Number of bytes processed; the rest may be completed by the next piece."""
    events_lost: int = 0
    bytes_lost: int = 0
    repaired: int = 0
    ended: bool = False
    """Whether the end of the list of events was found; `used` is just after its bracket."""


def salvage(piece: bytes, *, exact: bool, final: bool) -> Salvage:
    """Salvage the events of a piece; without `final`, leave an unfinished event at its end for the next piece."""
    text = piece.decode("utf-8", "replace")
    saved = Salvage()
    seams = [match.start() + 1 for match in _SEAM.finditer(text)]
    decoder = wire.ONE_EXACT_EVENT if exact else wire.ONE_EVENT
    at, seam = 0, 0
    while True:
        at = _past_blank(text, at)
        if at >= len(text):
            break
        if text[at] == "]":
            at += 1
            saved.ended = True
            break
        while seam < len(seams) and seams[seam] <= at:
            seam += 1
        stop = _object_end(text, at, seams[seam : seam + _TRIES]) if text[at] == "{" else None
        if stop is None:
            following = _resume(text, at)
            if following is None and not final:
                break
            following = len(text) if following is None else following
            saved.events_lost += 1
            saved.bytes_lost += len(text[at:following].encode())
            at = following
            continue
        _keep(saved, text[at:stop], decoder, exact=exact)
        at = stop
    saved.used = len(text[:at].encode())
    return saved


def salvage_fields(text: bytes) -> tuple[dict[str, Any], int]:
    """Salvage the complete top-level fields of damaged text around the events; also return the number of bytes lost."""
    source = text.decode("utf-8", "replace")
    fields: dict[str, Any] = {}
    lost, at = 0, 0
    while at < len(source):
        begin = _past_blank(source, at)
        key = _KEY.match(source, begin + 1 if source[begin : begin + 1] == "{" else begin)
        if key is not None:
            try:
                value, stop = _LENIENT.raw_decode(source, key.end())
                fields[_storable(key[1])] = _storable(value)
                at = stop
                continue
            except _FAILURES:
                pass  # not this field: continue after it
        following = _NEXT_FIELD.search(source, (key.end() if key else at) + 1)
        stop = following.end() if following else len(source)
        if source[at:stop].strip(" \t\r\n,{}]"):
            lost += len(source[at:stop].encode())
        at = stop
    return fields, lost


def _past_blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _object_end(text: str, at: int, seams: list[int]) -> int | None:
    """Return the end of the object that starts at `at`, or None; tries only a few seams, so that damage stays cheap."""
    for stop in seams or [len(text)]:
        try:
            _, size = _LENIENT.raw_decode(text[at:stop])
        except _FAILURES:
            continue
        return at + size
    if len(seams) == _TRIES:
        return None
    try:
        return at + _LENIENT.raw_decode(text[at:])[1]
    except _FAILURES:
        return None


def _resume(text: str, at: int) -> int | None:
    seam = _SEAM.search(text, at)
    start = _EVENT_START.search(text, at + 1)
    if seam is not None:
        return seam.end()
    if start is not None and text[at] != "{":
        return start.start()
    return None


def _keep(saved: Salvage, text: str, decoder: Any, *, exact: bool) -> None:  # noqa: ANN401 - either event decoder
    try:
        saved.events.append(decoder.decode(text.encode()))
    except DECODE_ERRORS:
        try:
            event = _repair(_LENIENT.decode(text), exact=exact)
        except _FAILURES:
            event = None
        if event is None:
            saved.events_lost += 1
            saved.bytes_lost += len(text.encode())
        else:
            saved.repaired += 1
            saved.events.append(event)


def _repair(fields: Any, *, exact: bool) -> wire.Event | wire.ExactEvent | None:  # noqa: ANN401 - any JSON
    """Build an event from the usable fields, or return None if even its kind or time is unusable."""
    if not isinstance(fields, dict) or not isinstance(fields.get("ph"), str):
        return None
    ts, dur = _number(fields.get("ts")), _number(fields.get("dur"))
    shared = {
        "ph": fields["ph"],
        "cat": _text(fields.get("cat")),
        "name": _text(fields.get("name")),
        "pid": _identity(fields.get("pid")),
        "tid": _identity(fields.get("tid")),
        "args": msgspec.Raw(_args(fields.get("args"))),
    }
    if exact:
        return wire.ExactEvent(**shared, ts=_raw(ts), dur=_raw(dur))
    return wire.Event(**shared, ts=ts, dur=dur)


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, (int, float, str)) else math.nan
    except _FAILURES:
        return math.nan


def _raw(value: float) -> msgspec.Raw:
    return msgspec.Raw(repr(value).encode() if math.isfinite(value) else b"")


def _text(value: object) -> str:
    text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    return text.encode("utf-8", "replace").decode()


def _identity(value: object) -> int | str | float | None:
    return value if isinstance(value, (int, float)) else _text(value)


def _args(value: object) -> bytes:
    if not isinstance(value, dict) or not value:
        return b""
    clean: bytes = msgspec.json.encode(_storable(value))
    return clean


def _storable(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value
