"""Files named by a user: read within limits, checked against declared types, written atomically.

Errors name the path, and for invalid data also the field.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from usp_prof import limits
from usp_prof.limits import MAX_DEPTH, MAX_DESCRIPTION_BYTES
from usp_prof.model.errors import NO_ROOM, InputError
from usp_prof.whole_files import append_at_once, whole_file


def read_bytes(path: str | Path, kind: str, hint: str) -> bytes:
    """Read a small file; pipes, devices, folders and files that are too large are refused."""
    file = Path(path)
    try:
        if not file.is_file():
            why = (
                "it is a folder"
                if file.is_dir()
                else "it is not a regular file"
                if file.exists()
                else "it does not exist"
            )
            raise InputError(f"cannot read {kind} {path}: {why}", hint=hint)
        if file.stat().st_size > MAX_DESCRIPTION_BYTES:
            raise InputError(f"{kind} {path} is larger than {MAX_DESCRIPTION_BYTES >> 20} MB", hint=hint)
        return file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read {kind} {path}: {why}", hint=hint) from None


def read_text(path: str | Path, kind: str, hint: str) -> str:
    """Read a small text file, as editors and spreadsheets write it."""
    try:
        return read_bytes(path, kind, hint).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{kind} {path} is not UTF-8 text: {error}", hint=hint) from None


def read_json(path: str | Path, kind: str, hint: str) -> Any:  # noqa: ANN401 - any JSON
    """Read a small JSON file."""
    try:
        text = read_bytes(path, kind, hint)
        data = json.loads(text)
        check_depth(data)
        check_keys(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a {kind}: {error}", hint=hint) from None
    return data


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in a text, in which numbers may be NaN; empty if it has none."""
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def check_keys(text: bytes) -> None:
    """Raise `ValueError` if a JSON object has a key twice: parsers silently keep one of them."""
    if twice := keys_held_twice(text):
        raise ValueError(f"{twice[0]!r} occurs twice in one object")


def keys_held_twice(text: bytes) -> list[str]:
    """Return the keys that a JSON object has more than once."""
    twice: dict[str, None] = {}

    def seen(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > 1:
            count = Counter(key for key, _ in pairs)
            twice.update((key, None) for key in count if count[key] > 1)

    json.loads(text, object_pairs_hook=seen, parse_int=str)  # numbers of any length
    return list(twice)


def is_there(path: Path) -> bool:
    """Return whether a file or folder exists; names that are too long do not."""
    try:
        return path.exists()
    except OSError:
        return False


def folders_below(
    top: Path, on_error: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk like `os.walk` and follow links; a folder whose real path was visited before is skipped."""
    seen: set[str] = set()
    for folder, inner, names in os.walk(top, followlinks=True, onerror=on_error):
        real = os.path.realpath(folder)
        if real in seen:  # a link to a parent folder, or a second link to the same folder
            inner.clear()
        else:
            seen.add(real)
            yield folder, inner, names


def csv_rows(file: Iterable[str], kind: str) -> tuple[list[str], list[dict[str, str]]]:
    """Read columns and rows of a text table. Missing cells are empty; extra cells are refused."""
    reader = csv.DictReader(file, restval="")
    try:
        rows = list(reader)
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"the {kind} is not CSV: {error}", hint="save it as CSV in UTF-8") from None
    for number, row in enumerate(rows, 2):
        if None in row:
            raise InputError(f"the {kind} has more cells than columns in row {number}", hint="quote cells with commas")
    return list(reader.fieldnames or ()), rows


def check_depth(data: object, most: int = MAX_DEPTH) -> None:
    """Raise `ValueError` if lists and objects are nested too deeply."""
    if most < 0:
        raise ValueError(f"lists and objects are nested deeper than {MAX_DEPTH}")
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for item in inner:
        check_depth(item, most - 1)


def check_name(path: str | Path, hint: str = "choose another file with -o") -> None:
    """Refuse an impossible file name: with a zero byte, or characters without an encoding."""
    name = str(path)
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise InputError(
            f"cannot use {name!r}: it is not a valid file name (an unpaired surrogate)", hint=hint
        ) from None
    if "\0" in name:
        raise InputError(f"cannot use {name!r}: it is not a valid file name (a zero byte)", hint=hint)


LONGEST_NAME = 255
"""Bytes of a file name that every file system supports."""


def check_file_name(path: str | Path, hint: str = "choose another file with -o") -> None:
    """Refuse an impossible file name, or one of an existing folder."""
    check_name(path, hint)
    if not Path(path).name or str(path).endswith(("/", os.sep)):
        raise InputError(f"cannot write {str(path)!r}: it names no file", hint=hint)
    if len(os.fsencode(Path(path).name)) > LONGEST_NAME:
        raise InputError(f"cannot write {path}: its name is longer than {LONGEST_NAME} bytes", hint=hint)
    if os.path.isdir(path):  # noqa: PTH112 - false where the name is longer than names may be
        raise InputError(f"cannot write {path}: it is a folder", hint=hint)


@contextmanager
def written(path: str | Path, hint: str = "choose another file with -o") -> Iterator[IO[bytes]]:
    """Open a file for writing that appears complete or not at all. A full disk stays an `OSError`: no path helps."""
    check_file_name(path, hint)
    try:
        with whole_file(Path(path)) as file:
            yield file
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise InputError(f"cannot write {path}: {error.strerror}", hint=hint) from None


def write(path: str | Path, data: bytes | str, hint: str = "choose another file with -o") -> None:
    """Write a file atomically."""
    with written(path, hint) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def add_to(path: str | Path, data: str, hint: str) -> None:
    """Append to a file that others may append to at the same time, such as the summary of a CI step: all or nothing.

    Devices and pipes are written directly.
    """
    check_file_name(path, hint)
    try:
        if Path(path).exists() and not Path(path).is_file():
            write(path, data, hint)
            return
        if Path(path).exists():
            read_text(path, "file", hint)  # appending would corrupt another encoding
        append_at_once(Path(path), data.encode())
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise InputError(f"cannot write {path}: {error.strerror}", hint=hint) from None


# Plain data checked against types: JSON becomes a dataclass, or an error that names the field.

T = TypeVar("T")

ERRORS = (TypeError, ValueError, KeyError, AttributeError, OverflowError, msgspec.ValidationError, RecursionError)
"""Exceptions that data of another shape raises when it is parsed."""


def checked(kind: type[T], data: object) -> T:
    """Convert data to a dataclass with every field of its declared type, or raise one of `ERRORS`.

    Numbers must be finite, and integers exact as doubles.
    """
    check_numbers(data)
    return msgspec.convert(data, kind)


def check_numbers(data: object, where: str = "") -> None:
    """Raise `ValueError` if a number at any depth is not finite or too large for a count."""
    if isinstance(data, dict):
        for key, inner in data.items():
            check_numbers(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(data, (list, tuple)):
        for place, inner in enumerate(data):
            check_numbers(inner, f"{where}[{place}]")
    elif isinstance(data, float) and not math.isfinite(data):
        raise ValueError(f"{where} is {data}, which is not a finite number")
    elif isinstance(data, int) and not isinstance(data, bool) and not limits.CHANGE.holds(data):
        raise ValueError(f"{where} is {str(data)[:24]}, outside of {limits.CHANGE}")


def is_later(data: object, format_name: str, version: int) -> bool:
    """Return whether decoded JSON is a file of one of our formats in a later version."""
    if not isinstance(data, dict) or data.get("format") != format_name:
        return False
    written = data.get("version")
    return isinstance(written, int) and written > version
