"""Table of groups: each rank's process groups, and the axis of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from usp_prof import limits
from usp_prof.columns.rows import first_rows, group_codes
from usp_prof.model.schema import RANK, Schema, integer, text
from usp_prof.model.topology import Axis, AxisSource, Group, group_key
from usp_prof.tables.build import table_from_rows
from usp_prof.tables.communication.arguments import numbers, texts
from usp_prof.tables.communication.parts import communicator_streams
from usp_prof.tables.parallelism.axis_names import axis_of_description
from usp_prof.tables.parallelism.gloo_groups import groups_of_workers
from usp_prof.tables.ranks import distributed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from usp_prof.columns.arrays import Flags, Ints
    from usp_prof.tables.communication.parts import Parts
    from usp_prof.tables.events.frame import EventFrame
    from usp_prof.tables.table_set import Source


SCHEMA = Schema(
    "groups",
    "Process groups seen from each rank. A group is identified by its name and its ranks together.",
    (
        RANK,
        text("group", "Key: name@ranks."),
        text("name", "Name as recorded."),
        text("description", "Description as recorded."),
        text("backend", "Backend as recorded."),
        integer("size", "Number of members."),
        text("ranks", "Members' global ranks, comma separated; empty when unknown."),
        text("axis", "Parallel axis."),
        text("axis_source", "description, manifest, ranks, mark, inferred or none."),
        text("axis_reason", "Why an inferred axis is what it is; empty for any other."),
    ),
)


@dataclass(frozen=True, slots=True)
class Membership:
    """The groups of one rank and, for each part, which of them it ran in (place in `groups`; -1 when unknown)."""

    groups: tuple[Group, ...]
    of_part: Ints
    inferred: Flags
    """The part's group is inferred from where and how it ran, not said by its events."""


def declared(metadata: Mapping[str, Any]) -> tuple[Group, ...]:
    """Read the groups that the file declares in `pg_config`."""
    config = distributed(metadata).get("pg_config")
    entries = config.values() if isinstance(config, dict) else config if isinstance(config, list) else []
    groups = []
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        ranks = parse_ranks(entry.get("ranks"))
        name = str(entry.get("pg_name", ""))
        size = entry.get("pg_size", entry.get("group_size"))
        groups.append(
            make_group(
                name,
                ranks,
                description=str(entry.get("pg_desc") or ""),
                backend=str(entry.get("backend_config") or entry.get("backend") or ""),
                size=size if limits.WORLD_SIZE.holds(size) else len(ranks) or -1,
            )
        )
    return tuple(groups)


def make_group(name: str, ranks: tuple[int, ...], *, description: str = "", backend: str = "", size: int = -1) -> Group:
    """Make a group; its axis is what the description says."""
    axis = axis_of_description(description)
    source = AxisSource.NONE if axis is Axis.UNKNOWN else AxisSource.DESCRIPTION
    return Group(group_key(name, ranks), name, description, backend, ranks, size, axis, source)


def parse_ranks(value: object) -> tuple[int, ...]:
    """Read a list of ranks, as JSON or as its text; one cut short ("...") or with an odd value is unknown."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if isinstance(value, dict):  # the form of 2021: global rank to group rank
        value = [limits.whole(str(key)) for key in value]
    if not isinstance(value, list) or not all(map(limits.RANK.holds, value)):
        return ()
    return tuple(value)


def join(frame: EventFrame, parts: Parts) -> Membership:
    """Find the group of each part from what its events say, else from the stream or the worker that it runs on."""
    said = parts.arguments
    config = declared(frame.metadata)
    world = distributed(frame.metadata).get("world_size")
    columns = [texts(said, name) for name in ("group_name", "group_id", "ranks", "description")]
    coded = [codes for codes, _ in columns] + [numbers(said, n) for n in ("group_size", "first_rank", "stride")]
    if not len(coded[0]):
        return Membership(config, np.zeros(0, np.int64), np.zeros(0, dtype=bool))
    inverse = group_codes(*coded)
    distinct = np.stack([column[first_rows(inverse)] for column in coded], axis=1)
    groups = {group.key: group for group in config}
    config_of: dict[str, list[Group]] = {}
    for entry in config:
        config_of.setdefault(entry.name, []).append(entry)
    keys = []
    for line in distinct.tolist():
        words = [values[code] for code, (_, values) in zip(line[:4], columns, strict=True)]
        group = _group(words, line[4:], config_of, world if limits.WORLD_SIZE.holds(world) else -1)
        keys.append(group.key if group else "")
        if group and group.key not in groups:
            groups[group.key] = group
    listed = tuple(groups.values())
    place = {group.key: number for number, group in enumerate(listed)}
    of_part = np.array([place.get(key, -1) for key in keys])[inverse]
    said_so = of_part >= 0
    if parts.gloo and not said_so.all():
        of_part = np.where(said_so, of_part, groups_of_workers(frame, parts, listed))
        return Membership(listed, of_part, ~said_so & (of_part >= 0))
    if not parts.on_host:
        of_part = _by_stream(of_part, communicator_streams(frame, parts))
    return Membership(listed, of_part, np.zeros(len(of_part), dtype=bool))


def _by_stream(of_part: Ints, stream: Ints) -> Ints:
    """Give parts that say nothing the group of their stream, where all that say something on it agree.

    A communicator has a stream of its own; what was launched before the window carries no arguments but runs on it.
    """
    known = of_part >= 0
    if known.all() or not known.any():
        return of_part
    pairs = np.unique(np.stack([stream[known], of_part[known]], axis=1), axis=0)
    streams, count = np.unique(pairs[:, 0], return_counts=True)
    sole = pairs[np.isin(pairs[:, 0], streams[count == 1])]
    place = np.minimum(np.searchsorted(sole[:, 0], stream), max(len(sole) - 1, 0))
    if not len(sole):
        return of_part
    return np.where(~known & (sole[place, 0] == stream), sole[place, 1], of_part)


def _group(words: list[str], counts: list[int], config_of: Mapping[str, list[Group]], world: int) -> Group | None:
    name, number, listed, description = words
    size, first, stride = counts
    name = name or number
    ranks = parse_ranks(listed)
    named = config_of.get(name, []) if name else []
    if not ranks and len(named) == 1 and size in (-1, named[0].size):
        return named[0]
    if not ranks and size > 0 and first >= 0 and stride > 0:
        ranks = parse_ranks(list(range(first, first + size * stride, stride)))
    if not ranks and 0 < size == world:
        ranks = tuple(range(world))
    if not ranks and not name:
        return None
    backend = next((group.backend for group in named if group.ranks == ranks), "")
    return make_group(name, ranks, description=description, backend=backend, size=size if size > 0 else len(ranks))


def build(rank: int, groups: Iterable[Group]) -> pa.Table:
    """Build the table: the groups that the file declares and those that only its events name."""
    return table_from_rows(
        SCHEMA,
        (
            {
                "rank": rank,
                "group": group.key,
                "name": group.name,
                "description": group.description,
                "backend": group.backend,
                "size": group.size,
                "ranks": ",".join(map(str, group.ranks)),
                "axis": group.axis,
                "axis_source": group.axis_source,
                "axis_reason": group.axis_reason,
            }
            for group in groups
        ),
    )


def seen(sources: Mapping[int, Source]) -> list[Group]:
    """Gather the groups of all ranks; of one key the entry that says more counts."""
    found: dict[str, Group] = {}
    for source in sources.values():
        for row in source.table("groups").to_pylist():
            ranks = tuple(int(rank) for rank in row["ranks"].split(",")) if row["ranks"] else ()
            group = Group(
                row["group"], row["name"], row["description"], row["backend"], ranks, row["size"],
                row["axis"], row["axis_source"],
            )  # fmt: skip
            known = found.get(group.key)
            if known is None or (known.axis == Axis.UNKNOWN and group.axis != Axis.UNKNOWN):
                found[group.key] = group
    return list(found.values())
