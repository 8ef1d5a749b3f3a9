"""Large traces from a small recorded one, repeated with later times and separate ids per copy.

python benchmarks/large_trace.py SMALL.json.gz LARGE.json --megabytes 500
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBERS = re.compile(
    rb'("ts": ?|"(?:External id|correlation|id|Ev Idx|Python (?:parent )?id|Record function id)": ?|ProfilerStep#)'
    rb"(\d+)((?:\.\d+)?)"
)
_DISTRIBUTED = re.compile(rb'"distributedInfo": ?\{[^{}\[]*"rank": ?\d+[^{}\[]*')
APART_US = 10_000_000
"""Default distance between the starts of two copies."""
_BETWEEN_US = 200
_IDS = 10_000_000


def parts(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a trace into the parts before, inside and after its list of events."""
    opening = re.search(rb'"traceEvents"\s*:\s*\[', text)
    closes = [match.start() + 1 for match in re.finditer(rb"\}\s*\](?=\s*[,}])", text)]
    if opening is None or not closes:
        raise SystemExit("no trace events")
    last = max(place for place in closes if b'"ph"' in text[max(opening.end(), place - 400) : place])
    return text[: opening.end()], text[opening.end() : last].strip(), text[last:]


def copy(events: bytes, number: int, apart_us: int = APART_US) -> bytes:
    """Return the events shifted in time and ids."""

    def shifted(match: re.Match[bytes]) -> bytes:
        key, digits, rest = match.groups()
        step = apart_us if key.startswith(b'"ts"') else 1_000 if key.startswith(b"Profiler") else _IDS
        return key + str(int(digits) + number * step).encode() + rest

    return _NUMBERS.sub(shifted, events) if number else events


def build(small: Path, large: Path, *, megabytes: float = 0, events: int = 0, apart_us: int = APART_US) -> int:
    """Write the large trace up to this size or this number of events, and return the number of events."""
    text = gzip.decompress(small.read_bytes()) if small.suffix == ".gz" else small.read_bytes()
    head, body, tail = parts(text)
    events_per_copy = len(re.findall(rb'"ph": ?"', body))
    copies = max(1, round(megabytes * 1e6 / len(body)) if megabytes else -(-events // events_per_copy))
    with large.open("wb") as out:
        out.write(head + b"\n")
        for number in range(copies):
            out.write((b",\n  " if number else b"  ") + copy(body, number, apart_us))
        out.write(tail)
    return copies * events_per_copy


def span_us(files: Iterable[Path]) -> int:
    """Return the duration of a run, from the first start to the last end over all its traces, plus a margin."""
    begin, end = [], []
    for path in files:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        slices = [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]
        begin.append(min(event["ts"] for event in slices))
        end.append(max(event["ts"] + event.get("dur", 0) for event in slices))
    return int(max(end) - min(begin)) + _BETWEEN_US


def of_rank(text: bytes, rank: int, world: int) -> bytes:
    """Return the trace as another rank of a run of this size would have written it."""
    match = _DISTRIBUTED.search(text)
    if match is None:
        raise SystemExit("the trace does not say which rank it is of")
    info = re.sub(rb'"rank": ?\d+', b'"rank": %d' % rank, match[0], count=1)
    info = re.sub(rb'"world_size": ?\d+', b'"world_size": %d' % world, info, count=1)
    return text[: match.start()] + info + text[match.end() :]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("small", type=Path)
    parser.add_argument("large", type=Path)
    parser.add_argument("--megabytes", type=float, default=0)
    parser.add_argument("--events", type=int, default=0)
    args = parser.parse_args()
    count = build(args.small, args.large, megabytes=args.megabytes, events=args.events)
    print(f"{args.large}: {args.large.stat().st_size / 1e6:.1f} MB, {count:,} events")


if __name__ == "__main__":
    main()
