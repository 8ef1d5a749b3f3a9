"""Manifest: what the recorder knew about the run, from `run.json` next to the traces or the same text inside them.

Each field is checked separately for type and range. A field that does not fit is left out and reported.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

import msgspec

from usp_prof import limits
from usp_prof.contract import MANIFEST_NAME, VERSION, GroupEntry, Manifest, ModelEntry, model_entry
from usp_prof.inputs.remote import Location
from usp_prof.model.files import ERRORS, keys_held_twice
from usp_prof.model.health import HealthRow, Severity
from usp_prof.model.printable import first_few

RANGES = {
    "mesh": limits.DEGREE,
    "coordinates": limits.RANK,
    "ranks": limits.RANK,
    "stages": limits.STAGE,
    "micro_batches": limits.MICRO_BATCHES,
    "gradient_accumulation": limits.MICRO_BATCHES,
    "zero_stage": limits.Range(-1, 3),
    "devices_per_node": limits.Range(0, limits.MAX_RANKS),
    "processes_per_device": limits.Range(0, limits.MAX_RANKS),
}
"""Allowed range of integers in the fields with these names; other fields use `limits.COUNT`."""
_FREE = frozenset({"faults", "options"})
"""Fields that may contain any JSON and are only displayed."""
_LISTS = frozenset({"groups"})
"""Lists whose entries are checked separately."""


def find_manifest(folders: Iterable[Location]) -> Location | None:
    """Return the first `run.json` in these folders, or None."""
    return next((path for folder in folders if (path := folder / MANIFEST_NAME).is_file()), None)


def read_manifest(path: Location) -> tuple[Manifest | None, tuple[HealthRow, ...]]:
    """Read `run.json`; if it cannot be used, return None and a health row."""
    try:
        text = path.read_bytes().removeprefix(codecs.BOM_UTF8)  # editors may add a byte order mark
        data = msgspec.json.decode(text)
        twice = keys_held_twice(text)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return None, (_broken(str(path), str(error)),)
    manifest, health = manifest_from(data, str(path))
    if twice:
        detail = f"keys that stand twice in the manifest, the last one counts: {', '.join(twice[:6])}"
        health += (HealthRow("odd_values", Severity.ERROR, count=len(twice), detail=detail, file=str(path)),)
    return manifest, health


def manifest_from(data: Any, origin: str) -> tuple[Manifest | None, tuple[HealthRow, ...]]:  # noqa: ANN401 - any JSON
    """Build a manifest from parsed JSON (or from JSON text inside JSON, as old recorders wrote it)."""
    try:
        if isinstance(data, str):
            data = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        return None, (_broken(origin, str(error)),)
    if not isinstance(data, dict):
        return None, (_broken(origin, "it is not an object"),)
    version = data.get("version", VERSION)
    if not limits.NUMBER.holds(version) or version > VERSION:
        why = f"version {str(version)[:24]} is newer than {VERSION}: update usp-prof"
        return None, (_broken(origin, why),)
    odd: list[str] = []
    valid_fields = _checked_fields(data, odd)
    if not odd:
        return Manifest(**valid_fields), ()
    detail = f"fields of the manifest are outside of their type or range and count as missing: {first_few(odd, 6)}"
    return Manifest(**valid_fields), (
        HealthRow("odd_values", Severity.ERROR, count=len(odd), detail=detail, file=origin),
    )


def _checked_fields(data: Mapping[str, Any], odd: list[str]) -> dict[str, Any]:
    """Return the fields that fit; ignore unknown fields, such as those of later versions."""
    valid_fields: dict[str, Any] = {}
    for name, kind in _kinds().items():
        if name not in data:
            continue
        value = data[name]
        if name in _LISTS and isinstance(value, list):
            valid_fields[name] = [
                entry
                for place, item in enumerate(value)
                for entry in _fitting(f"{name}[{place}]", GroupEntry, item, odd)
            ]
            continue
        for valid_value in _fitting(name, kind, value, odd):
            valid_fields[name] = valid_value
    return valid_fields


def _fitting(name: str, kind: Any, value: Any, odd: list[str]) -> list[Any]:  # noqa: ANN401 - any type, any JSON
    """Return the value converted to `kind`, in a list; an empty list if it does not fit."""
    try:
        valid_value = (
            _model(value) if name == "model" else msgspec.convert(_known_fields(kind, value), kind, strict=False)
        )
        if name not in _FREE:
            _check_numbers(name, value)  # booleans are still distinct from numbers here
            _check_numbers(name, msgspec.to_builtins(valid_value))  # numeric strings are numbers here
    except ERRORS as error:
        odd.append(f"{name} ({str(error)[:80]})")
        return []
    return [valid_value]


def _model(value: Any) -> ModelEntry | None:  # noqa: ANN401 - any JSON
    if value is None or value == {}:
        return None
    return msgspec.convert(msgspec.to_builtins(model_entry(value)), ModelEntry, strict=False)


def _known_fields(kind: Any, value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Remove an entry's unknown fields, such as those of later versions."""
    if kind is GroupEntry and isinstance(value, dict):
        return {field.name: value[field.name] for field in fields(GroupEntry) if field.name in value}
    return value


def _check_numbers(name: str, value: Any) -> None:  # noqa: ANN401 - any JSON
    """Raise if a number at any depth is outside its range."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_numbers(key if key in RANGES else name, inner)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(name, inner)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
    elif isinstance(value, int):
        within = RANGES.get(name.partition("[")[0], limits.COUNT)
        if isinstance(value, bool) and name in RANGES:
            raise TypeError(f"{value} is not a number")
        if not isinstance(value, bool) and not within.holds(value):
            raise ValueError(f"{str(value)[:24]} is outside of {within}")


@cache
def _kinds() -> dict[str, Any]:
    return get_type_hints(Manifest)


def _broken(origin: str, why: str) -> HealthRow:
    detail = f"the manifest cannot be used ({why}), so mesh, model and schedule come from the trace only"
    return HealthRow("broken_manifest", Severity.ERROR, detail=detail, file=origin)
