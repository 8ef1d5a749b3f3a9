"""Bytes of a file with any compression, as blocks, with the faults of the compression.

The compression is detected from the first bytes, never from the name: a `.json` may be gzip, a `.gz` may be plain text.
A compressed file that ends early or is corrupt yields every byte that can be unpacked; `PackingFault` reports the rest.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, runtime_checkable

import zstandard

from usp_prof import limits
from usp_prof.inputs.remote import Location
from usp_prof.model.errors import InputError

_BLOCK = 1 << 18
_PACKED_BLOCK = 1 << 16
"""Compressed bytes unpacked at once; about ten times as many come out."""
_FIRST_PACKED = 1 << 15
"""Size of the first block: a peek needs no more, and there may be thousands of files."""
_ZSTD_BLOCK = 1 << 12
"""Block size for Zstandard, where four bytes may unpack to 128 KB: at most 128 MB come out at once."""
_PHASE = re.compile(rb'"ph"\s*:')
_SIGN = 4
_STEP = 64
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPED = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""A frame without content; files of `pzstd` start with one."""
_GZIP_WINDOW = 31


@dataclass(frozen=True, slots=True)
class PackingFault:
    """A compressed file that could not be unpacked to its end."""

    kind: str
    """`truncated` if the file ends early, `corrupt` if its bytes are wrong."""
    packed_bytes_lost: int
    detail: str


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


@runtime_checkable
class _Copying(_Unpacker, Protocol):
    def copy(self) -> _Copying: ...


class Source:
    """One file, read once from its start; `fault` and `size` are valid after `blocks` has ended."""

    def __init__(self, path: Location) -> None:
        self.path = path
        self.fault: PackingFault | None = None
        self.size = 0

    def blocks(self) -> Iterator[bytes]:
        """Yield the unpacked bytes in blocks; damage inside the file never raises."""
        try:
            with self.path.open("rb", buffering=0) as stream:
                packed = _unpacker(stream.read(_SIGN))
                stream.seek(0)
                size = _BLOCK if packed is None else _PACKED_BLOCK if isinstance(packed, _Copying) else _ZSTD_BLOCK
                most = max(limits.MAX_UNPACKED_FREELY, limits.MAX_UNPACKING * self.path.stat().st_size)
                raw = iter(lambda: stream.read(size) or b"", b"")
                if packed is not None:
                    raw = chain([stream.read(min(size, _FIRST_PACKED))], raw)
                plain = raw if packed is None else self._unpack(raw, packed)
                for block in _as_list(_as_utf8(plain)):
                    self.size += len(block)
                    if packed is not None and self.size > most:
                        raise InputError(
                            f"{self.path} unpacks to more than {limits.MAX_UNPACKING} times its size",
                            hint="no trace does; unpack it by hand if it is one",
                        )
                    yield block
        except OSError as error:
            raise InputError(
                f"cannot read {self.path}: {error.strerror}", hint="check the path and its permissions"
            ) from None

    def _unpack(self, raw: Iterator[bytes], unpacker: _Unpacker) -> Iterator[bytes]:
        """Unpack frame after frame: `pigz`, `bgzip`, `pzstd` and `cat` write several."""
        left = self.path.stat().st_size  # compressed bytes not read yet
        data = b""
        for block in raw:
            left -= len(block)
            data += block
            while data:
                if unpacker.eof:
                    data = data.lstrip(b"\0")
                    if len(data) < _SIGN and left > 0:
                        break  # the signature of the next frame may be split between two reads
                    unpacker = _unpacker(data) or unpacker
                    if unpacker.eof:
                        if data:
                            self.fault = PackingFault("corrupt", left + len(data), "bytes after the end")
                        return
                spare = unpacker.copy() if isinstance(unpacker, _Copying) else None
                try:
                    out = unpacker.decompress(data)
                except (zlib.error, zstandard.ZstdError) as error:
                    saved, used = _up_to_the_fault(spare, data)
                    self.fault = PackingFault("corrupt", left + len(data) - used, f"unpacking failed: {error}")
                    yield saved
                    return
                if out:
                    yield out
                data = unpacker.unused_data if unpacker.eof else b""
        if not unpacker.eof:
            self.fault = PackingFault("truncated", 0, "the packed file ends early")


def wide_encoding(first: bytes) -> str:
    """Return the encoding of JSON with two bytes per letter, by byte order mark or first bracket; otherwise ""."""
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return {b"{\0": "utf-16-le", b"[\0": "utf-16-le", b"\0{": "utf-16-be", b"\0[": "utf-16-be"}.get(first[:2], "")


def _as_utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Convert UTF-16, as PowerShell writes it, to UTF-8; pass other text through unchanged."""
    first = next(blocks, b"")
    encoding = wide_encoding(first)
    if not encoding:
        yield first
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for block in chain([first], blocks):
        yield decoder.decode(block).encode()
    yield decoder.decode(b"", final=True).encode()


def _as_list(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Convert events with one per line (NDJSON) to a JSON list; pass other text through unchanged."""
    first = next(blocks, b"")
    if not _begins_with_an_event_line(first):
        yield first
        yield from blocks
        return
    yield b"["
    last_line = b""
    for block in chain([first], blocks):
        # Lines followed by another line get a comma; the last line is held until it is known whether one follows.
        *lines, last_line = (last_line + block).split(b"\n")
        yield b"".join(line + b",\n" for line in lines[:-1] if line.strip())
        last_line = b"\n".join([*lines[-1:], last_line])
    yield b",\n".join(line for line in last_line.split(b"\n") if line.strip()) + b"]"


def _begins_with_an_event_line(first: bytes) -> bool:
    """Return whether the first line is a complete event and another object follows it."""
    line, _, rest = first.lstrip().partition(b"\n")
    line = line.rstrip()
    if not (line.startswith(b"{") and line.endswith(b"}") and rest.lstrip().startswith(b"{")):
        return False
    return _PHASE.search(line) is not None and b'"traceEvents"' not in line


def _up_to_the_fault(unpacker: _Copying | None, data: bytes) -> tuple[bytes, int]:
    """Unpack again in small steps, so that only the faulty step is lost; return the output and the bytes used."""
    parts = []
    at = 0
    while unpacker is not None and at < len(data):
        try:
            parts.append(unpacker.decompress(data[at : at + _STEP]))
        except zlib.error:
            break
        at += _STEP
    return b"".join(parts), min(at, len(data))


def is_packed(first: bytes) -> bool:
    """Return whether a file's first four bytes are those of gzip or Zstandard."""
    return first.startswith((_GZIP, _ZSTD)) or _ZSTD_SKIPPED.match(first) is not None


def _unpacker(first: bytes) -> _Unpacker | None:
    if first.startswith(_GZIP):
        return zlib.decompressobj(_GZIP_WINDOW)
    if is_packed(first):
        unpacker: _Unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
        return unpacker
    return None
