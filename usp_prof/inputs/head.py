"""Head of a trace: its fields beside the events, checked where they enter.

What is outside of its range is left out and named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from usp_prof import limits

if TYPE_CHECKING:
    from collections.abc import Mapping

_RANGES = {"baseTimeNanoseconds": limits.EPOCH_NS}
_DISTRIBUTED = {"rank": limits.RANK, "world_size": limits.WORLD_SIZE}
_GROUP = {"pg_size": limits.WORLD_SIZE, "group_size": limits.WORLD_SIZE}
_DEVICE = {"totalGlobalMem": limits.COUNT, "id": limits.RANK}


def checked_head(fields: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Leave out what is outside of its range; gives the rest, and a name with its value for each that was."""
    odd: list[str] = []
    checked = _within(fields, _RANGES, "", odd)
    distributed = checked.get("distributedInfo")
    if isinstance(distributed, dict):
        own = _within(distributed, _DISTRIBUTED, "distributedInfo.", odd)
        groups = own.get("pg_config")
        if isinstance(groups, list):
            own["pg_config"] = [_group(entry, odd) for entry in groups]
        elif isinstance(groups, dict):
            own["pg_config"] = {key: _group(entry, odd) for key, entry in groups.items()}
        checked["distributedInfo"] = own
    devices = checked.get("deviceProperties")
    if isinstance(devices, list):
        checked["deviceProperties"] = [
            _within(one, _DEVICE, "deviceProperties.", odd) if isinstance(one, dict) else one for one in devices
        ]
    return checked, odd


def _group(entry: object, odd: list[str]) -> object:
    if not isinstance(entry, dict):
        return entry
    own = _within(entry, _GROUP, "pg_config.", odd)
    ranks = own.get("ranks")
    if isinstance(ranks, list) and not all(map(limits.RANK.holds, ranks)):
        odd.append(f"pg_config.ranks of group {str(own.get('pg_name', ''))[:40]!r}")
        del own["ranks"]
    return own


def _within(
    fields: Mapping[str, Any], ranges: Mapping[str, limits.Range], prefix: str, odd: list[str]
) -> dict[str, Any]:
    """Leave out numbers outside of their ranges; values of other types are left to who reads them."""
    kept = dict(fields)
    for name, within in ranges.items():
        value = kept.get(name)
        if isinstance(value, (int, float)) and not within.holds(value) and value != -1:
            odd.append(f"{prefix}{name}={str(value)[:24]} (may be {within})")
            del kept[name]
    return kept
