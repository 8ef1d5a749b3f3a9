"""Peek at Chrome JSON: kind, rank, host and time of a file, from its first bytes.

Only a small part of the file is read. Its end is read too if that is cheap, or if `to_end` is set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from usp_prof import limits
from usp_prof.contract import TRACE_METADATA_KEY
from usp_prof.inputs.argument_decoder import DECODE_ERRORS, object_in
from usp_prof.inputs.kineto import wire
from usp_prof.inputs.kineto.nanoseconds import ABSENT, from_texts
from usp_prof.inputs.kineto.salvage import salvage, salvage_fields
from usp_prof.inputs.kineto.split import Feed, checked_head, last_seam, parse_head
from usp_prof.inputs.peek import FileKind, TraceFile
from usp_prof.inputs.process_ranks import states_ranks
from usp_prof.inputs.remote import Location
from usp_prof.inputs.source import Source, is_packed, wide_encoding

_TAIL = 1 << 18
_EVENTS = 1 << 17
_STEP = re.compile(rb'"ProfilerStep#(\d+)"')
_DEVICE_EVENT = re.compile(
    rb'"cat":\s*"(?i:kernel|(?:gpu_)?memcpy|(?:gpu_)?memset|(?:cuda|hip|xpu|mtia|privateuse1)_(?:runtime|driver)|runtime'
    rb'|mtia_ccp_events)"'
)
"""Categories of device work, and of the host calls that launch it."""
_TIME = re.compile(rb'"ts":\s*"?(\d+)')
_ARRAY_CLOSE = re.compile(rb"\}\s*\]\s*,(?=\s*\")")
_SIGNS = (
    (FileKind.EXECUTION_TRACE, (b'"nodes"', b'"schema"')),
    (FileKind.FLIGHT_RECORDER, (b'"collective_seq_id"',)),
    (FileKind.FLIGHT_RECORDER, (b'"entries"', b'"pg_config"')),
    (FileKind.MANIFEST, (b'"mesh"', b'"version"', b'"axis_order"')),
)
"""Keys near the start that identify a file without `traceEvents`."""
_OTHER_PACKINGS = (b"PK\3\4", b"BZh", b"\xfd7zXZ\0", b"\x04\x22\x4d\x18", b"7z\xbc\xaf\x27\x1c")
"""First bytes of ZIP, bzip2, xz, LZ4 and 7-Zip."""


_OF_INTEREST = ("distributedInfo", "baseTimeNanoseconds", "host_name", "hostname", "deviceProperties")
"""The fields that are parsed from the head of a trace; if they do not state the rank, all fields are parsed."""


def has_device_events(path: Location) -> bool:
    """Return whether a trace has device work or calls that launch it; reads up to the first such event."""
    tail = b""
    for block in Source(path).blocks():
        if _DEVICE_EVENT.search(tail + block):
            return True
        tail = block[-64:]
    return False


def last_ns(path: Location) -> int:
    """Return the latest start among a trace's last events, about its end; -1 if unknown. Reads the complete file."""
    scan = _Scan(Source(path).blocks())
    first = b""
    for block in scan:
        first = first or block[:_TAIL]
    base = re.search(rb'"baseTimeNanoseconds":\s*(\d{1,19})', first + scan.last)
    times = [int(text) for text in _TIME.findall(scan.last) if len(text) < 17]
    return max(times, default=-1) * 1000 + (int(base[1]) if base else 0) if times else -1


def peek(path: Location, format_name: str, *, to_end: bool) -> tuple[TraceFile, bool]:
    """Inspect a file; return what it states, and whether its first processes state their ranks."""
    source = Source(path)
    scan = _Scan(source.blocks())
    feed = Feed(iter(scan), _OF_INTEREST)
    feed.fill(1 << 16)
    kind = _other_kind(path, feed.buffer)
    if kind is not None:
        return TraceFile(path, kind, format_name), False
    head = feed.open_events()
    if head is None:
        is_unreadable = source.fault is not None and not feed.buffer
        return TraceFile(path, FileKind.OTHER if is_unreadable else FileKind.JSON, format_name), False
    feed.fill(_EVENTS)
    start = feed.buffer[:_EVENTS]
    first = _first_events(start)
    if not first and feed.buffer.strip()[:1] not in {b"]", b""} and b'"ph"' not in feed.buffer:
        return TraceFile(path, FileKind.JSON, format_name), False
    fields = salvage_fields(head)[0] if feed.fields is None else feed.fields
    info = fields.get("distributedInfo")
    if to_end or not (isinstance(info, dict) and isinstance(info.get("rank"), int)):
        fields = fields if feed.fields is None else parse_head(head) or {}
        fields = {**_end_fields(path, source, scan, fields, to_end=to_end), **fields}
    return _stated(path, format_name, fields, first, scan.step), states_ranks(start)


def _first_events(text: bytes) -> list[wire.ExactEvent]:
    """Decode the events in the first text: those up to the last seam in one call if valid, the rest one by one."""
    seam = last_seam(text)
    events: list[wire.ExactEvent] = []
    if seam is not None:
        try:
            events = wire.EXACT_EVENTS.decode(b"[" + text[: seam.start() + 1] + b"]")
        except DECODE_ERRORS:
            seam = None
    return events + salvage(text[seam.end() if seam else 0 :], exact=True, final=False).events


class _Scan:
    """An iterator over blocks that records the last text and the first profiler step that passed."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self.last = b""
        self.step = -1

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            text = self.last[-64:] + block
            if self.step < 0 and (match := _STEP.search(text)):
                self.step = int(match[1]) if len(match[1]) < 19 else -1
            self.last = (self.last + block)[-_TAIL:]
            yield block


def _other_kind(path: Location, text: bytes) -> FileKind | None:
    start = text.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start:
        return FileKind.EMPTY if not text or text.isspace() else None
    if is_packed(start) or start.startswith(_OTHER_PACKINGS) or text[257:262] == b"ustar":
        return FileKind.PACKED
    if path.name.startswith("dedicated_log_") or re.match(rb"V\d{4} \d\d:\d\d", start):
        return FileKind.DYNAMO_LOG
    if b'"traceEvents"' in text:
        return None
    if start[:1] not in b"{[":
        return FileKind.OTHER
    return next((kind for kind, signs in _SIGNS if all(sign in text for sign in signs)), None)


def _end_fields(path: Location, source: Source, scan: _Scan, fields: dict[str, Any], *, to_end: bool) -> dict[str, Any]:
    """Read the fields after the events: from the end of a plain file, or by unpacking all of a compressed one."""
    plain = source.size <= path.stat().st_size and not _packed(path)
    if plain and not to_end:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL))
            scan.last = stream.read()
    elif to_end or "schemaVersion" not in fields:
        for _ in scan:
            pass
    else:
        return {}
    closes = list(_ARRAY_CLOSE.finditer(scan.last))
    return salvage_fields(scan.last[closes[-1].end() :])[0] if closes else {}


def _packed(path: Location) -> bool:
    with path.open("rb") as stream:
        first = stream.read(4)
    return is_packed(first) or bool(wide_encoding(first))


def _stated(path: Location, format_name: str, fields: dict[str, Any], first: list[Any], step: int) -> TraceFile:
    fields, _ = checked_head(fields)
    info = fields.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    recorded = fields.get(TRACE_METADATA_KEY)
    recorded = object_in(recorded) if isinstance(recorded, str) else recorded if isinstance(recorded, dict) else {}
    rank, rank_source = _number(info.get("rank"), limits.RANK), "distributedInfo"
    if rank < 0:
        rank, rank_source = _number(recorded.get("rank"), limits.RANK), "manifest"
    base = _number(fields.get("baseTimeNanoseconds"), limits.EPOCH_NS)
    host = fields.get("host_name", fields.get("hostname", ""))
    return TraceFile(
        path,
        FileKind.TRACE,
        format_name,
        rank=rank,
        rank_source=rank_source if rank >= 0 else "",
        world_size=_number(info.get("world_size"), limits.WORLD_SIZE),
        host=host if isinstance(host, str) else "",
        start_ns=_start(first, max(base, 0)),
        step=step,
        device=_first_device(fields.get("deviceProperties")),
    )


def _first_device(devices: object) -> str:
    first = devices[0] if isinstance(devices, list) and devices else None
    name = first.get("name") if isinstance(first, dict) else None
    return name if isinstance(name, str) else ""


def _start(first: list[Any], base: int) -> int:
    times, _ = from_texts([bytes(event.ts) for event in first])
    times = times[(times != ABSENT) & (times > 0)]
    return int(times.min()) + base if len(times) else -1


def _number(value: object, within: limits.Range) -> int:
    return value if isinstance(value, int) and within.holds(value) else -1
