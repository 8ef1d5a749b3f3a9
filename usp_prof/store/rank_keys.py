"""Rank keys: under which name a rank's tables are stored; it follows from all that they follow from.

That is the trace's content, the rank, the manifest, this package's version, and the lines of code that read and build.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
import xxhash

from usp_prof._version import __version__, fingerprint
from usp_prof.inputs.remote import RemotePath
from usp_prof.model.errors import InputError
from usp_prof.tables import catalogue

if TYPE_CHECKING:
    from usp_prof.contract import Manifest
    from usp_prof.inputs.remote import Location
    from usp_prof.inputs.runs import TraceFile

_BLOCK = 1 << 18
"""Bytes of a file that are read at once."""


def key_of_rank(file: TraceFile, manifest_text: str) -> str:
    """Make the key of a rank's tables; the manifest as text, since it names every rank and is the same for all."""
    made_by = (__version__, fingerprint(*catalogue.ROOMS))
    return content_key(file.path, file.path.name, file.rank, manifest_text, *made_by)


def text_of_manifest(manifest: Manifest | None) -> str:
    """Write a manifest as the text that goes into keys."""
    return msgspec.json.encode(manifest.to_dict() if manifest else None, order="sorted").decode()


def content_key(path: Location, *parts: object) -> str:
    """Make the key of a file: all its bytes, and what else decides what is made of them.

    XXH3 of 128 bits, at the speed of reading: no two files meet by chance, and nobody gains by making two that do.
    Of a file on an object store its URL, size and ETag stand for the bytes, which would have to be fetched.
    """
    content = xxhash.xxh3_128()
    if isinstance(path, RemotePath):
        path = path.listed()
        if path.stamp:
            return _key(f"{path.url} {path.size} {path.stamp}".encode(), parts)
    block = memoryview(bytearray(_BLOCK))
    try:
        with path.open("rb", buffering=0) as stream:
            while size := stream.readinto(block):
                content.update(block[:size])
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", hint="check the path and its rights") from None
    return _key(content.digest(), parts)


def _key(content: bytes, parts: tuple[object, ...]) -> str:
    told = b"\0".join((content, *(str(part).encode("utf-8", "surrogateescape") for part in parts)))
    return hashlib.blake2b(told, digest_size=20).hexdigest()
