"""Long description: the README as package indexes show it, its relative links leading to the repository.

Hatchling runs this whenever it builds; `pyproject.toml` names it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = "https://github.com/usp-prof/usp-prof"
RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


class LongDescription(MetadataHookInterface):
    """Adds the `readme` field."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Return the README with absolute links."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": RELATIVE_LINK.sub(_absolute, text)}


def _absolute(link: re.Match[str]) -> str:
    image, words, path = link.groups()
    kind = "raw" if image else "blob"  # a page about an image cannot be shown as one
    return f"{image}[{words}]({REPOSITORY}/{kind}/main/{path})"
