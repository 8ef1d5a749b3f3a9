"""Sealed folders: `entry.json` names every file of a folder with its size and hash, and carries a hash of itself.

A folder whose files differ from that by one bit is not opened. XXH3 of 128 bits guards against damage (a flipped bit,
a full disk, a write that was cut short), not against somebody who wants to deceive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAME = "entry.json"
VERSION = 1
_BLOCK = 1 << 20
_PRIVATE = 0o600


class BrokenSealError(Exception):
    """The folder is there and is not what was sealed; the message says in what."""


class Sealed(msgspec.Struct):
    """What `entry.json` holds of a folder."""

    version: int
    files: dict[str, tuple[int, str]]
    """Size and hash of each file by its path below the folder."""
    note: dict[str, Any]


class _Entry(msgspec.Struct):
    seal: str
    content: msgspec.Raw


def seal(folder: Path, note: Mapping[str, Any]) -> None:
    """Write the folder's `entry.json`; nobody but the owner may read its files."""
    files = {path.relative_to(folder).as_posix(): path for path in files_of(folder)}
    stamps = {name: (path.stat().st_size, hash_of(path)) for name, path in files.items()}
    content = msgspec.json.encode(Sealed(VERSION, stamps, dict(note)), order="deterministic")
    text = msgspec.json.encode(_Entry(xxhash.xxh3_128_hexdigest(content), msgspec.Raw(content)))
    (folder / NAME).write_bytes(text)
    for path in (*files.values(), folder / NAME):
        path.chmod(_PRIVATE)


def open_sealed(folder: Path) -> dict[str, Any]:
    """Give the note of a folder that is as it was sealed.

    Raises `FileNotFoundError` where there is no such folder, and `BrokenSealError` where it is damaged.
    """
    content = _content(folder)
    for name, (size, digest) in content.files.items():
        path = folder / name
        try:
            if path.stat().st_size != size:
                raise BrokenSealError(f"{name} has {path.stat().st_size} bytes, not {size}")
            if hash_of(path) != digest:
                raise BrokenSealError(f"{name} has other contents")
        except OSError as error:
            raise BrokenSealError(f"{name}: {error.strerror}") from None
    return content.note


def read_seal(text: bytes) -> Sealed:
    """Read an `entry.json`; raises `BrokenSealError` where it is damaged."""
    try:
        entry = msgspec.json.decode(text, type=_Entry)
        if xxhash.xxh3_128_hexdigest(bytes(entry.content)) != entry.seal:
            raise BrokenSealError(f"{NAME} has other contents")
        content = msgspec.json.decode(entry.content, type=Sealed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenSealError(f"{NAME}: {error}") from None
    if content.version != VERSION:
        raise BrokenSealError(f"{NAME} has version {content.version}, not {VERSION}")
    return content


def _content(folder: Path) -> Sealed:
    try:
        text = (folder / NAME).read_bytes()
    except FileNotFoundError:
        if folder.is_dir():
            raise BrokenSealError(f"{NAME} is missing") from None
        raise
    except OSError as error:
        raise BrokenSealError(f"{NAME}: {error.strerror}") from None
    return read_seal(text)


def files_of(folder: Path) -> list[Path]:
    """List the files below a folder, without its `entry.json`."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / NAME)


def hash_of(path: Path) -> str:
    """Give the XXH3 of a file's contents."""
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
