"""What does the browser ask the server, beside pages? Tiles, the timeline's head, searches; all parameters checked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dashboard import data
from dashboard.timeline.rows import CATEGORIES
from dashboard.timeline.tile import encode
from usp_prof import UspProfError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from dashboard.timeline.store import TimelineStore

MOST_ROWS = 2000
WIDEST_PX = 8192
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
    return data.timeline_store(_number(request, "run", 0, data.run_count() - 1))


def _rows(request: Request, store: TimelineStore) -> list[tuple[int, int]]:
    text = request.query_params.get("rows", "")
    if not _ROWS.fullmatch(text):
        raise BadRequestError("rows must be like 0.3-0.4-1.3 (rank.row)")
    rows = [(int(rank), int(row)) for rank, _, row in (pair.partition(".") for pair in text.split("-"))]
    if len(rows) > MOST_ROWS or any(r not in store.ranks or i >= len(store.ranks[r].rows) for r, i in rows):
        raise BadRequestError("rows names a row that there is not, or too many")
    return rows


def tile(request: Request) -> Response:
    """Answer one tile."""
    store = _store(request)
    bound = 4 * store.span_ns + 1000
    start, end = _number(request, "t0", -bound, bound), _number(request, "t1", -bound, bound)
    width = _number(request, "w", 1, WIDEST_PX)
    if end <= start:
        raise BadRequestError("t1 must be after t0")
    view = store.view(_rows(request, store), start, end, (end - start) / width)
    return Response(encode(view, start, end, width), media_type="application/octet-stream")


def head(request: Request) -> Response:
    """Answer what the timeline consists of: rows, names, categories, steps."""
    index = _number(request, "run", 0, data.run_count() - 1)
    store = data.timeline_store(index)
    rows = [
        {
            "rank": rank, "index": i, "track": row.track if row.depth == 0 else "", "kind": row.kind,
            "label": f"{rank}.{i}", "rank_label": f"rank {rank}",
        }
        for rank, line in store.ranks.items()
        for i, row in enumerate(line.rows)
    ]  # fmt: skip
    names = [name if len(name) <= MOST_NAME else name[: MOST_NAME - 1] + "…" for name in store.names]
    answer = {"rows": rows, "names": names, "categories": CATEGORIES, "span_ns": store.span_ns}
    return JSONResponse(answer | {"steps": data.timeline_steps(index)})


def _guarded(answer: Callable[[Request], Response]) -> Callable[[Request], object]:
    async def route(request: Request) -> Response:
        try:
            return await run_in_threadpool(answer, request)
        except BadRequestError as error:
            return PlainTextResponse(str(error), status_code=400)
        except UspProfError as error:
            return PlainTextResponse(f"{error.message} ({error.hint})", status_code=409)

    return route


ROUTES = (Route("/usp/tile", _guarded(tile)), Route("/usp/timeline", _guarded(head)))
