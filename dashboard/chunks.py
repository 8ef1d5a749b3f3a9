"""Which files will a page ask for once it has begun to draw? Those of Streamlit's elements that our pages consist of.

A browser learns of them one wave after the other, as elements come to be drawn. Named in the page's head, they come
with the first ones. They are read from Streamlit's own files; where these look different, fewer or none are named.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import streamlit

ROOT = Path(streamlit.__file__).parent / "static"
ELEMENTS = ("Html", "TextInput", "Metric", "PageLink", "BidiComponent", "ButtonGroup", "DataFrame", "DownloadButton")
"""What the first page consists of, beside text."""
_IMPORTED = re.compile(r"""(?:from|import)\s*["']\./([\w.-]+\.js)["']""")


@cache
def later() -> tuple[str, ...]:
    """Give the addresses of what the elements need, in no order, less what the first page names itself."""
    folder, index = ROOT / "static" / "js", ROOT / "index.html"
    named = index.read_text(encoding="utf-8") if index.is_file() else ""
    todo = [file.name for element in ELEMENTS for file in sorted(folder.glob(f"{element}.*.js"))]
    found: dict[str, None] = {}
    while todo:
        name = todo.pop()
        if name in found or name in named or not (folder / name).is_file():
            continue
        found[name] = None
        todo += _IMPORTED.findall((folder / name).read_text(encoding="utf-8"))
    return tuple(f"/static/js/{name}" for name in found)
