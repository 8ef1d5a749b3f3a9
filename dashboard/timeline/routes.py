"""What does the browser ask the server, beside pages? Tiles, the timeline's head, searches; all parameters checked."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dashboard import data
from dashboard.timeline import perfetto
from dashboard.timeline.rows import CATEGORIES
from dashboard.timeline.tile import encode
from usp_prof import UspProfError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from dashboard.timeline.store import TimelineStore

MOST_ROWS = 2000
WIDEST_PX = 8192
FARTHEST_NS = 10**15
"""Far beyond any run: one that is moved with a longer one is asked for what it has nothing of."""
MOST_NAME = 400
_ROWS = re.compile(r"\d{1,6}\.\d{1,5}(-\d{1,6}\.\d{1,5})*")


class BadRequestError(ValueError):
    """A parameter that is missing or out of its bounds."""


def _number(request: Request, name: str, low: int, high: int) -> int:
    text = request.query_params.get(name, "")
    if not re.fullmatch(r"-?\d{1,18}", text) or not low <= int(text) <= high:
        raise BadRequestError(f"{name} must be a whole number from {low} to {high}")
    return int(text)


def _store(request: Request) -> TimelineStore:
    index = _number(request, "run", 0, data.run_count() - 1)
    return data.call_store(index) if request.query_params.get("of") == "calls" else data.timeline_store(index)


def _rows(request: Request, store: TimelineStore) -> list[tuple[int, int]]:
    text = request.query_params.get("rows", "")
    if not _ROWS.fullmatch(text):
        raise BadRequestError("rows must be like 0.3-0.4-1.3 (rank.row)")
    rows = [(int(rank), int(row)) for rank, _, row in (pair.partition(".") for pair in text.split("-"))]
    if len(rows) > MOST_ROWS or any(r not in store.ranks or i >= len(store.rows(r)) for r, i in rows):
        raise BadRequestError("rows names a row that there is not, or too many")
    return rows


def tile(request: Request) -> Response:
    """Answer one tile."""
    store = _store(request)
    start, end = _number(request, "t0", -FARTHEST_NS, FARTHEST_NS), _number(request, "t1", -FARTHEST_NS, FARTHEST_NS)
    width = _number(request, "w", 1, WIDEST_PX)
    if end <= start:
        raise BadRequestError("t1 must be after t0")
    view = store.view(_rows(request, store), start, end, (end - start) / width)
    return Response(encode(view, start, end, width), media_type="application/octet-stream")


def trace(request: Request) -> Response:
    """Answer a range of some ranks as one trace for Perfetto."""
    index = _number(request, "run", 0, data.run_count() - 1)
    store, tables = data.timeline_store(index), data.open_numbered(index).tables
    start, end = _number(request, "t0", -store.span_ns, 2 * store.span_ns), _number(request, "t1", 0, 2 * store.span_ns)
    ranks = request.query_params.get("ranks", "")
    wanted = [int(rank) for rank in ranks.split("-")] if re.fullmatch(r"\d{1,6}(-\d{1,6})*", ranks) else []
    if end <= start or not wanted or len(wanted) > MOST_ROWS or not set(wanted) <= set(tables.ranks):
        raise BadRequestError("t1 must be after t0, and ranks like 0-1-2 of the run's")
    packed = perfetto.trace(tables, store, sorted(set(wanted)), start, end)
    said = {"Content-Disposition": f'attachment; filename="{perfetto.NAME}"'}
    return Response(packed, media_type="application/gzip", headers=said)


def head(request: Request) -> Response:
    """Answer what the timeline consists of: rows, names, categories, steps."""
    return Response(_head(_store(request)), media_type="application/json")


@lru_cache(maxsize=8)
def _head(store: TimelineStore) -> bytes:
    rows = {rank: [(row.track, row.kind, row.depth) for row in store.rows(rank)] for rank in store.ranks}
    names = [name if len(name) <= MOST_NAME else name[: MOST_NAME - 1] + "…" for name in store.names]
    steps = [{"number": step.number, "start_ns": step.start_ns, "end_ns": step.end_ns} for step in store.steps]
    answer = {"rows": rows, "names": names, "categories": CATEGORIES, "span_ns": store.span_ns, "steps": steps}
    answer["labels"] = store.labels
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
    Route("/usp/trace", _guarded(trace)),
)
