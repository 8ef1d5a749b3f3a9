"""Files that a person names: read within bounds, written whole; what is wrong with a path is said with the path."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from usp_prof.limits import MAX_DEPTH, MAX_DESCRIPTION_BYTES
from usp_prof.model.errors import NO_ROOM, InputError
from usp_prof.whole_files import whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator


def read_bytes(path: str | Path, what: str, hint: str) -> bytes:
    """Read a small file; a pipe, a device, a folder or anything too large is refused."""
    file = Path(path)
    try:
        if not file.is_file():
            why = "it is a folder" if file.is_dir() else "it is no plain file" if file.exists() else "it does not exist"
            raise InputError(f"cannot read {what} {path}: {why}", hint=hint)
        if file.stat().st_size > MAX_DESCRIPTION_BYTES:
            raise InputError(f"{what} {path} is larger than {MAX_DESCRIPTION_BYTES >> 20} MB", hint=hint)
        return file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read {what} {path}: {why}", hint=hint) from None


def read_json(path: str | Path, what: str, hint: str) -> Any:  # noqa: ANN401 - any JSON
    """Read a small JSON file."""
    try:
        data = json.loads(read_bytes(path, what, hint))
        check_depth(data)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no {what}: {error}", hint=hint) from None
    return data


def check_depth(data: object, most: int = MAX_DEPTH) -> None:
    """Raise `ValueError` where lists and objects lie deeper inside one another than anybody writes them."""
    if most < 0:
        raise ValueError(f"lists and objects are nested deeper than {MAX_DEPTH}")
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for each in inner:
        check_depth(each, most - 1)


@contextmanager
def written(path: str | Path, hint: str = "choose another file with -o") -> Iterator[IO[bytes]]:
    """Open a file to write; it is there whole, or not at all. A full disk stays an `OSError`: no path helps."""
    try:
        if not Path(path).name:
            raise InputError(f"cannot write {str(path)!r}: it names no file", hint=hint)
        with whole_file(Path(path)) as file:
            yield file
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise InputError(f"cannot write {path}: {error.strerror}", hint=hint) from None


def write(path: str | Path, data: bytes | str, hint: str = "choose another file with -o") -> None:
    """Write a file at once."""
    with written(path, hint) as file:
        file.write(data.encode() if isinstance(data, str) else data)
