"""Table of groups: each rank's process groups, and the axis of each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from usp_prof import limits
from usp_prof.columns.arrays import Ints
from usp_prof.columns.rows import combinations, lookup, rows_of
from usp_prof.model.schema import RANK, Schema, integer, text
from usp_prof.model.topology import Axis, AxisSource, Group, group_key
from usp_prof.tables.build import table_from_rows
from usp_prof.tables.communication.parts import Membership, Parts, communicator_streams
from usp_prof.tables.completeness.posted_calls import CallCounts
from usp_prof.tables.events.frame import EventFrame
from usp_prof.tables.parallelism.axis_names import axis_of_description
from usp_prof.tables.parallelism.gloo_groups import groups_of_workers
from usp_prof.tables.ranks import distributed

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
        text("ranks", "Global ranks of the members, separated by commas; empty when unknown."),
        text("axis", "Parallel axis."),
        text("axis_source", "description, manifest, ranks, mark, inferred or none."),
        text("axis_reason", "Reason for an inferred axis; otherwise empty."),
        integer("calls", "Number of collectives that the rank posted in its marked steps; -1 when unknown."),
        integer("first_sequence", "First sequence number of its collectives; -1 when none is known."),
        integer("last_sequence", "Last sequence number of its collectives; -1 when none is known."),
        integer("missing_sequences", "Sequence numbers between these two that no collective of the rank has."),
    ),
)


def declared(metadata: Mapping[str, Any]) -> tuple[Group, ...]:
    """Read the groups declared in the file's `pg_config`."""
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
    """Build a group; its axis comes from the description."""
    axis = axis_of_description(description)
    source = AxisSource.NONE if axis is Axis.UNKNOWN else AxisSource.DESCRIPTION
    return Group(group_key(name, ranks), name, description, backend, ranks, size, axis, source)


def parse_ranks(value: object) -> tuple[int, ...]:
    """Parse a list of ranks, as JSON or as text; a truncated one ("...") or an invalid value is unknown."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if isinstance(value, dict):  # the format of 2021: global rank to group rank
        value = [limits.parse_integer(str(key)) for key in value]
    if not isinstance(value, list) or not all(map(limits.RANK.holds, value)):
        return ()
    return tuple(value)


def join(frame: EventFrame, parts: Parts) -> Membership:
    """Find the group of each part from its events, or from its stream or worker."""
    config = declared(frame.metadata)
    if not len(parts):
        return Membership(config, np.zeros(0, np.int64), np.zeros(0, dtype=bool))
    groups, group_of_part = _groups_named(frame, parts, config)
    is_named = group_of_part >= 0
    if parts.gloo and not is_named.all():
        group_of_part = np.where(is_named, group_of_part, groups_of_workers(frame, parts, groups))
        return Membership(groups, group_of_part, ~is_named & (group_of_part >= 0))
    if not parts.on_host:
        group_of_part = _by_stream(group_of_part, communicator_streams(frame, parts))
    return Membership(groups, group_of_part, np.zeros(len(group_of_part), dtype=bool))


def _groups_named(frame: EventFrame, parts: Parts, config: tuple[Group, ...]) -> tuple[tuple[Group, ...], Ints]:
    """Return the groups of a rank, those of the file's head first, and the group named by each part, or -1."""
    world = distributed(frame.metadata).get("world_size")
    config_of_name: dict[str, list[Group]] = {}
    for entry in config:
        config_of_name.setdefault(entry.name, []).append(entry)
    words = [parts.arguments.codes(name) for name in ("group_name", "group_id", "ranks", "description")]
    counts = [parts.arguments[name] for name in ("group_size", "first_rank", "stride")]
    # Many parts name a group in the same way, so each combination is parsed once.
    distinct, combination_of_part = combinations(*(codes for codes, _ in words), *counts)
    groups = {group.key: group for group in config}
    keys = []
    for line in distinct:
        texts_of_line = [values[code] for code, (_, values) in zip(line[: len(words)], words, strict=True)]
        known_world = world if limits.WORLD_SIZE.holds(world) else -1
        group = _group(texts_of_line, line[len(words) :], config_of_name, known_world)
        keys.append(group.key if group else "")
        if group:
            groups.setdefault(group.key, group)
    place = {key: number for number, key in enumerate(groups)}
    return tuple(groups.values()), np.array([place.get(key, -1) for key in keys])[combination_of_part]


def _by_stream(group_of_part: Ints, stream: Ints) -> Ints:
    """Assign parts without a group the group of their stream, if all other parts on it agree.

    A communicator has its own stream; work launched before the window has no arguments but runs on it.
    """
    is_known = group_of_part >= 0
    # Pairs of stream and group, sorted; then the pairs of streams with a single group.
    pairs = np.array(combinations(stream[is_known], group_of_part[is_known])[0], np.int64).reshape(-1, 2)
    streams, groups_on_stream = np.unique(pairs[:, 0], return_counts=True)
    stream_of_pair, group_of_pair = pairs[np.isin(pairs[:, 0], streams[groups_on_stream == 1])].T
    group_of_stream = lookup(group_of_pair, rows_of(stream_of_pair, stream), missing=-1)
    return np.where(is_known, group_of_part, group_of_stream)


def _group(words: list[str], counts: list[int], config_of_name: Mapping[str, list[Group]], world: int) -> Group | None:
    """Build the group from an event's arguments; `None` if they give neither group nor ranks.

    Ranks come from the event's list, from the only group of this name in the file's head, from size, first rank and
    stride, or from a size equal to that of the job.
    """
    name, number, rank_list, description = words
    size, first, stride = counts
    name = name or number
    ranks = parse_ranks(rank_list)
    groups_of_name = config_of_name.get(name, []) if name else []
    if not ranks and len(groups_of_name) == 1 and size in (-1, groups_of_name[0].size):
        return groups_of_name[0]
    if not ranks and size > 0 and first >= 0 and stride > 0:
        ranks = parse_ranks(list(range(first, first + size * stride, stride)))
    if not ranks and 0 < size == world:
        ranks = tuple(range(world))
    if not ranks and not name:
        return None
    backend = next((group.backend for group in groups_of_name if group.ranks == ranks), "")
    return make_group(name, ranks, description=description, backend=backend, size=size if size > 0 else len(ranks))


def build(rank: int, groups: Iterable[Group], counts: Sequence[CallCounts]) -> pa.Table:
    """Build the table: groups declared by the file, and those named only by its events."""
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
                **asdict(count),
            }
            for group, count in zip(groups, counts, strict=True)
        ),
    )
