"""Documentation site: it builds strictly, without network, and its search finds pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_site_builds_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    site = tmp_path / "site"
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(site)]
    env = os.environ | {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.relative_to(site).with_suffix(".md").as_posix() for page in site.rglob("*.html")}
    assert {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} <= pages
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert "straggler" in index
    for page in site.rglob("*.html"):
        assert not re.search(r"\u2013[a-z]", page.read_text(encoding="utf-8")), (
            f"{page.name}: an option lost its dashes"
        )
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text(encoding="utf-8"))
        assert loaded == [], page.name
