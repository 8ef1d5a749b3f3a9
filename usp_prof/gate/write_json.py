"""What does a program read of a check? The whole report as JSON: plain numbers, stable names, null for unknown."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from usp_prof.gate.wording import headline

if TYPE_CHECKING:
    from usp_prof.gate.verdict import Report

VERSION = 1


def render(report: Report) -> str:
    """Write the check as JSON."""
    data = {
        "format": "usp-prof-check",
        "version": VERSION,
        "headline": headline(report),
        "exit_code": report.exit_code,
        "ratchet": report.ratchet,
        **plain(asdict(report)),
    }
    return json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n"


def plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Make a value fit for JSON: what is not finite becomes null."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
