"""Speed of links: transfers of a group or a pair of ranks, compared with those of the other links of the same axis.

A link is a group of a collective, or the two ranks of a send and receive. Links are compared per kind of call: axis,
operation and bytes. Sends and receives are compared only with those that also stay inside a node, or also leave it.
Over gloo they are not compared, because processes that share cores often wait for a core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from usp_prof.columns.arrays import Flags, Floats, Ints
from usp_prof.columns.rows import distinct, first_rows, group_codes, lookup, rows_by_code, rows_of
from usp_prof.columns.table import Columns
from usp_prof.model.errors import unknown_name
from usp_prof.replay.graph import Graph, NodeKind, events_of
from usp_prof.replay.peers import calls_of
from usp_prof.tables import calls
from usp_prof.tables.table_set import TableSet, memoized
from usp_prof.whatif.fitted_times import over_gloo

FEWEST_SENDS = 4
"""Minimum number of messages of one kind to compare a pair of ranks."""


@dataclass(frozen=True, slots=True)
class LinkSlowness:
    """A link's transfers compared with the median of the other links on its axis, for equal operations and bytes."""

    group: str
    """Key of the group; for a pair of ranks in a larger group, the group's name and these two ranks."""
    axis: str
    ratio: float
    """Mean ratio of its transfer times to those of the other links, weighted by transfer time."""
    calls: int
    extra_ns: int
    """Total extra time of its transfers; negative if the link is faster."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkCalls:
    """Calls that tie nodes of the graph, with the link of each and its speed."""

    rows: Columns
    link: Ints
    """Code of each call's link in `names`."""
    names: list[str]
    ratio: Floats
    """Usual transfer time of the call's link divided by that of the other links (1: equal or unknown)."""
    extra_ns: Floats
    """Difference between these two times."""


@memoized("link calls")
def link_calls(tables: TableSet) -> LinkCalls:
    """Return the calls and the speed of their links."""
    rows = calls_of(tables)
    ratio, extra_ns = np.ones(len(rows)), np.zeros(len(rows))
    if not len(rows):
        return LinkCalls(rows, np.zeros(0, np.int64), [], ratio, extra_ns)
    link, names = _links(tables, rows)
    transfer_ns, is_message = rows["transfer_ns"], rows.matches("matched_by", "p2p")
    kind = group_codes(
        *(rows.codes(name)[0] for name in ("axis", "op", "matched_by")), rows["bytes"], is_message & rows["inter_node"]
    )
    is_timed = transfer_ns > 0
    if over_gloo(tables):
        is_timed &= ~is_message
    timed = np.flatnonzero(is_timed)
    for rows_of_kind in rows_by_code(kind[timed]).values():
        alike = timed[rows_of_kind]
        calls_of_link = {code: alike[rows_of_link] for code, rows_of_link in rows_by_code(link[alike]).items()}
        usual_ns = _usual_times(calls_of_link, transfer_ns, are_messages=bool(is_message[alike[0]]))
        for code in usual_ns if len(usual_ns) > 1 else ():
            of_others = float(np.median([usual for other, usual in usual_ns.items() if other != code]))
            ratio[calls_of_link[code]] = usual_ns[code] / of_others if of_others else 1.0
            extra_ns[calls_of_link[code]] = usual_ns[code] - of_others
    return LinkCalls(rows, link, names, ratio, extra_ns)


def _usual_times(calls_of_link: Mapping[int, Ints], transfer_ns: Ints, *, are_messages: bool) -> dict[int, float]:
    """Return the usual transfer time of each link; links with few messages are left out.

    A message may wait for other messages of its batch or link, so the undisturbed quarter of them is usual.
    """
    if not are_messages:
        return {link: float(np.median(transfer_ns[calls])) for link, calls in calls_of_link.items()}
    return {
        link: float(np.quantile(transfer_ns[calls], 0.25))
        for link, calls in calls_of_link.items()
        if len(calls) >= FEWEST_SENDS
    }


def _links(tables: TableSet, rows: Columns) -> tuple[Ints, list[str]]:
    """Return the link of each call, and the names of the links: keys of groups, and names of groups with two ranks."""
    group, texts = rows.codes("group")
    parts = calls.match_calls(tables).parts.by_call("call")  # sorted by call and rank
    first = np.searchsorted(parts["call"], rows["call"])
    last = np.searchsorted(parts["call"], rows["call"], side="right") - 1
    is_message = rows.matches("matched_by", "p2p")
    low, high = (np.where(is_message, parts["rank"][part], -1) for part in (first, last))
    code = group_codes(group, low, high)
    names = [
        f"{texts[group[row]].partition('@')[0]}@{low[row]},{high[row]}" if is_message[row] else texts[group[row]]
        for row in first_rows(code).tolist()
    ]
    # Collectives and messages of a group of two have the same link.
    link_of_name = {name: link for link, name in enumerate(dict.fromkeys(names))}
    return lookup(np.array([link_of_name[name] for name in names]), code, missing=-1), list(link_of_name)


def link_slowness(tables: TableSet) -> list[LinkSlowness]:
    """Return the links whose transfer times differ from other links', largest extra time first."""
    compared = link_calls(tables)
    rows, ratio = compared.rows, compared.ratio
    links = []
    for code in distinct(compared.link[ratio != 1]).tolist():
        of_link = np.flatnonzero((compared.link == code) & (ratio != 1))
        transfer_ns, ratio_of_call = rows["transfer_ns"][of_link], ratio[of_link]
        links.append(
            LinkSlowness(
                group=compared.names[code],
                axis=str(rows["axis"][of_link[0]]),
                ratio=float(np.average(ratio_of_call, weights=transfer_ns)),
                calls=len(of_link),
                extra_ns=int((transfer_ns * (1 - 1 / ratio_of_call)).sum()),
            )
        )
    return sorted(links, key=lambda link: (-link.extra_ns, link.group))


def group_word(group: str) -> str:
    """Return a group's key for use in an edit, in which commas have another meaning."""
    return group.replace(",", "+")


def with_links_as_peers(graph: Graph, tables: TableSet, wanted: str) -> Graph:
    """Return the graph with the given link or group (or every slower link) as fast as the other links.

    A group may be named without its ranks.
    """
    compared = link_calls(tables)
    rows, is_message = compared.rows, compared.rows.matches("matched_by", "p2p")
    group, texts = rows.codes("group") if len(rows) else (np.zeros(0, np.int64), [])
    is_every = wanted in ("all", "")
    names = {group_word(text) for text in (*compared.names, *texts)}
    if not is_every and wanted not in names | {name.partition("@")[0] for name in names}:
        raise unknown_name("link", wanted, names)
    is_slower = (compared.ratio > 1) & (
        lookup([is_every or wanted == group_word(name) for name in compared.names], compared.link, missing=False)
        | lookup([wanted in (group_word(text), text.partition("@")[0]) for text in texts], group, missing=False)
    )
    # One value per call; the last entry is for nodes without a call (-1).
    ratio = np.append(np.where(is_slower, compared.ratio, 1.0), 1.0)[graph.nodes.call]
    limit_ns = np.append(np.where(is_slower & is_message, compared.extra_ns, np.inf), np.inf)[graph.nodes.call]
    transfer = np.rint(np.maximum(graph.transfer / ratio, graph.transfer - limit_ns)).astype(np.int64)
    duration = graph.duration.copy()
    for rank in tables.ranks:
        _shorten_unmatched(graph, tables, rank, compared, is_slower, duration)
    return graph.with_changes(transfer=transfer, duration=duration)


def _shorten_unmatched(
    graph: Graph, tables: TableSet, rank: int, compared: LinkCalls, is_slower: Flags, duration: Ints
) -> None:
    """Shorten a rank's collectives of slow groups that were not matched, such as those before the first step.

    Their durations include waits, so they lose at most the extra time of a usual call.
    """
    parts = tables.columns("collectives", rank)
    nodes = graph.nodes.of_rank(rank)
    nodes = nodes[(graph.nodes.kind[nodes] == NodeKind.COMMUNICATION) & (graph.nodes.call[nodes] < 0)]
    part = rows_of(parts["event"], events_of(graph)[nodes]) if len(parts) else np.full(len(nodes), -1)
    nodes, part = nodes[part >= 0], part[part >= 0]
    if not len(nodes):
        return
    largest = np.maximum(parts["in_bytes"], parts["out_bytes"])
    rows, slow = compared.rows, np.flatnonzero(is_slower & ~compared.rows.matches("matched_by", "p2p"))
    kind = group_codes(compared.link[slow], rows.codes("op")[0][slow], rows["bytes"][slow])
    for row in slow[first_rows(kind)].tolist():
        is_same = parts.matches("group", str(rows["group"][row])) & parts.matches("op", str(rows["op"][row]))
        same = nodes[(is_same & (largest == rows["bytes"][row]))[part]]
        like_others = np.maximum(duration[same] / compared.ratio[row], duration[same] - compared.extra_ns[row])
        duration[same] = np.rint(like_others).astype(np.int64)
