"""Splitter of a trace's text: the text before and after the list of events, and the list in pieces of complete events.

The complete text is never in memory. Cuts are guesses, made at what looks like the seam between two events. A wrong
guess can only produce invalid JSON, which the careful reader then handles (`salvage`).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from usp_prof import limits

PIECE = 1 << 19
"""Bytes of JSON decoded at once.

This is large enough to amortize the cost of a call. It is small enough for the decoded events to fit the CPU cache and
Python's free memory; above a megabyte decoding takes twice as long.
"""

HEAD_LIMIT = 64 << 20
_FIRST_LOOK = 1 << 16
_SEAM_LOOK = 1 << 12
_FIELD = rb'"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"'
_SEAM = re.compile(rb"\}\s*,\s*(?=\{\s*" + _FIELD + rb")")
_ARRAY_END = re.compile(rb"\}\s*\]")
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_START = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*")


class Feed:
    """Text still to be read: a buffer in front of the blocks of a source.

    With `wanted`, only those fields before the events are decoded: a manifest there may name thousands of ranks.
    """

    def __init__(self, blocks: Iterator[bytes], wanted: Collection[str] | None = None) -> None:
        self._wanted = wanted
        self._blocks = _cut_small(blocks)
        self._least = PIECE
        self.buffer = b""
        self.ended = False
        self.fields: dict[str, object] | None = {}
        """The fields before the events, once those are open; `None` if they are not valid JSON."""

    def fill(self, size: int) -> None:
        """Read until the buffer has `size` bytes or the source ends."""
        parts, n_bytes = [self.buffer], len(self.buffer)
        while n_bytes < size and not self.ended:
            block = next(self._blocks, None)
            if block is None:
                self.ended = True
            else:
                parts.append(block)
                n_bytes += len(block)
        if len(parts) > 1:
            self.buffer = b"".join(parts)

    def open_events(self) -> bytes | None:
        """Move to just inside the list of events; return the text before its key, or None if there is no such list."""
        self.fill(_FIRST_LOOK)
        start = _START.match(self.buffer)
        skipped = start.end() if start else 0
        if self.buffer[skipped : skipped + 1] == b"[":
            self.buffer = self.buffer[skipped + 1 :]
            return b""
        if self.buffer[skipped : skipped + 1] != b"{" and skipped < len(self.buffer):
            self.fields = None
            return self._open_at(_OPENING.search(self.buffer))
        while True:
            opening = self._best_opening()
            if opening is not None or self.ended or len(self.buffer) >= HEAD_LIMIT:
                return self._open_at(opening)
            self.fill(2 * len(self.buffer))

    def open_next_events(self) -> dict[str, object] | None:
        """Move inside the next list of events; return the fields before it, or None if there is no further list."""
        look = _FIRST_LOOK
        while True:
            self.fill(look)
            for match in _OPENING.finditer(self.buffer):
                between = parse_tail(self.buffer[: match.start()].rstrip().removesuffix(b",") + b"}")
                if between is not None:
                    self.buffer = self.buffer[match.end() :]
                    return between
            if self.ended or look >= HEAD_LIMIT:
                return None
            look *= 2

    def _best_opening(self) -> re.Match[bytes] | None:
        """Return the first key with valid JSON before it, or the first key: its text may also occur inside a string."""
        first = None
        for match in _OPENING.finditer(self.buffer):
            first = first or match
            self.fields = parse_head(self.buffer[: match.start()], self._wanted)
            if self.fields is not None:
                return match
        return first

    def _open_at(self, match: re.Match[bytes] | None) -> bytes | None:
        if match is None:
            return None
        head, self.buffer = self.buffer[: match.start()], self.buffer[match.end() :]
        return head

    def piece(self) -> bytes:
        """Cut off text that should consist of complete events, and return it as a JSON list."""
        while True:
            json_list = self._at_hand() or self._next()
            if json_list is not None:
                self._least = PIECE
                return json_list

    def _next(self) -> bytes | None:
        """Cut the next block of the source, together with the buffered text before it; nothing is copied twice."""
        block = next(self._blocks, None)
        if block is None:
            self.ended = True
            return None
        last = last_seam(block) if len(self.buffer) + len(block) >= self._least else None
        if last is None:
            self.buffer += block
            return None
        json_list = b"".join((b"[", self.buffer, memoryview(block)[: last.start() + 1], b"]"))
        self.buffer = block[last.end() :]
        return json_list

    def _at_hand(self) -> bytes | None:
        """Cut the buffered text; return None if more of it is needed."""
        if self.ended:
            text, self.buffer = self.buffer, b""
            return b"[" + text + b"]"
        if len(self.buffer) < self._least:
            return None
        last = last_seam(self.buffer)
        if last is None and len(self.buffer) < HEAD_LIMIT:  # an event longer than a piece
            self._least = 2 * len(self.buffer)
            return None
        cut, rest = (last.start() + 1, last.end()) if last is not None else (len(self.buffer), len(self.buffer))
        json_list = b"".join((b"[", memoryview(self.buffer)[:cut], b"]"))
        self.buffer = self.buffer[rest:]
        return json_list

    def give_back(self, text: bytes) -> None:
        """Put back the end of a piece, which the next piece may complete; that piece is cut larger than this text."""
        between = b"," if text and self.buffer else b""
        self.buffer = text + between + self.buffer
        self._least = max(PIECE, 2 * len(text))


def last_seam(text: bytes) -> re.Match[bytes] | None:
    """Return the last seam between events in a text, searching backward from its end."""
    window = _SEAM_LOOK
    while True:
        low = max(0, len(text) - window)
        seams = deque(_SEAM.finditer(text, low), maxlen=1)
        if seams or low == 0:
            return seams[0] if seams else None
        window *= 8


def _cut_small(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Split long blocks, which unpacked text produces."""
    for block in blocks:
        if len(block) <= PIECE:
            yield block
        else:
            yield from (block[at : at + PIECE] for at in range(0, len(block), PIECE))


def split_end(text: bytes) -> tuple[bytes, bytes] | None:
    """Split the last piece into events and the fields after them, if it ends like a complete file; otherwise None."""
    stripped = text.strip()
    if stripped in {b"]", b"]}"}:
        return b"", b"}"
    if stripped.startswith(b"]"):
        return b"", stripped[1:]
    low = max(0, len(text) - (1 << 16))
    for match in reversed(list(_ARRAY_END.finditer(text, low))[-64:]):
        rest = text[match.end() :]
        if parse_tail(rest) is not None:
            return text[: match.start() + 1], rest
    return None


def parse_head(text: bytes, wanted: Collection[str] | None = None) -> dict[str, object] | None:
    """Parse the fields before the events, all or only those wanted; return None if they are not valid JSON."""
    return _fields(text.rstrip().removesuffix(b",") + b"}", wanted) if text.strip() else {}


def parse_tail(text: bytes) -> dict[str, object] | None:
    """Parse the fields after the events; return None if they are not valid JSON."""
    rest = text.strip()
    if not rest:
        return {}
    return _fields(b"{" + rest.removeprefix(b","))


def _fields(text: bytes, wanted: Collection[str] | None = None) -> dict[str, object] | None:
    text = text.removeprefix(b"\xef\xbb\xbf")
    try:
        if wanted is None:
            return msgspec.json.decode(text, type=dict[str, object])
        unread = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return {name: msgspec.json.decode(unread[name]) for name in wanted if name in unread}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


# Fields next to the events, checked on entry: out-of-range values are left out and reported.


_RANGES = {"baseTimeNanoseconds": limits.EPOCH_NS}
_DISTRIBUTED = {"rank": limits.RANK, "world_size": limits.WORLD_SIZE}
_GROUP = {"pg_size": limits.WORLD_SIZE, "group_size": limits.WORLD_SIZE}
_DEVICE = {"totalGlobalMem": limits.COUNT, "id": limits.RANK}


def checked_head(fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Remove out-of-range values; return the other fields, and one `name=value` per removed field."""
    odd: list[str] = []
    checked = _within(fields, _RANGES, "", odd)
    distributed = checked.get("distributedInfo")
    if isinstance(distributed, dict):
        own = _within(distributed, _DISTRIBUTED, "distributedInfo.", odd)
        groups = own.get("pg_config")
        if isinstance(groups, list):
            own["pg_config"] = [_group(entry, odd) for entry in groups]
        elif isinstance(groups, dict):
            own["pg_config"] = {key: _group(entry, odd) for key, entry in groups.items()}
        checked["distributedInfo"] = own
    devices = checked.get("deviceProperties")
    if isinstance(devices, list):
        checked["deviceProperties"] = [
            _within(device, _DEVICE, "deviceProperties.", odd) if isinstance(device, dict) else device
            for device in devices
        ]
    return checked, odd


def _group(entry: object, odd: list[str]) -> object:
    if not isinstance(entry, dict):
        return entry
    own = _within(entry, _GROUP, "pg_config.", odd)
    ranks = own.get("ranks")
    if isinstance(ranks, list) and not all(map(limits.RANK.holds, ranks)):
        odd.append(f"pg_config.ranks of group {str(own.get('pg_name', ''))[:40]!r}")
        del own["ranks"]
    return own


def _within(
    fields: Mapping[str, Any], ranges: Mapping[str, limits.Range], prefix: str, odd: list[str]
) -> dict[str, Any]:
    """Return the fields without numbers outside their ranges; values of other types are checked where they are used."""
    valid_fields = dict(fields)
    for name, within in ranges.items():
        value = valid_fields.get(name)
        if isinstance(value, (int, float)) and not within.holds(value) and value != -1:
            odd.append(f"{prefix}{name}={str(value)[:24]} (may be {within})")
            del valid_fields[name]
    return valid_fields
