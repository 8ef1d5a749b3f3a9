"""Pages of a run with some ranks read, or representing all: omissions are stated next to the figures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from drawn import drawn, naming

from dashboard import data
from usp_prof.extras.synth.declaration import Declaration, with_events
from usp_prof.extras.synth.write import write
from usp_prof.model.edit import parse_edit
from usp_prof.replay import representatives

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from streamlit.testing.v1 import AppTest

SLOW = 3
DECLARED = {"mesh": {"dp": 6, "tp": 2}, "faults": [{"kind": "slow_rank", "rank": SLOW, "factor": 1.5}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make up a run of six replicas."""
    folder = tmp_path_factory.mktemp("replicas")
    write(with_events(Declaration.from_dict(DECLARED), 200), folder / "run")
    return folder


@pytest.fixture(autouse=True)
def named_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve it, with room to replay three of its replicas."""
    monkeypatch.setattr(representatives, "MOST_NODES", 1)
    with naming([folder / "run"], folder / "cache", monkeypatch):
        yield


def texts(app: AppTest) -> str:
    """Return a page's text."""
    return " ".join(str(text.value) for text in (*app.markdown, *app.caption, *app.warning, *app.error))


@pytest.mark.parametrize(
    ("page", "address"),
    [("whatif", {"edits": f"rank_as_peers={SLOW} comm_faster=2"}), ("suggestions", {"ticked": "0"})],
)
def test_a_prediction_from_representative_replicas_says_so(page: str, address: dict[str, str]) -> None:
    app = drawn(page, **address, open="play")
    assert "The prediction is from 6 of 12 ranks, 3 of 6 replicas" in texts(app)
    assert any("mean step of 6 ranks" in text.proto.body.lower() for text in app.get("html"))


def test_compared_changes_are_replayed_on_the_same_ranks() -> None:
    usual = data.prediction(0, (parse_edit("comm_faster=2"),)).replayed
    other = next(rank for rank in data.open_numbered(0).ranks if rank not in usual.tables.ranks)
    edits = parse_edit("comm_faster=2"), parse_edit(f"rank_as_peers={other}")
    alone, together = data.prediction(0, edits[:1], edits), data.prediction(0, edits)
    assert other in together.replayed.tables.ranks
    assert alone.replayed is together.replayed is not usual
    assert alone.before_ns == together.before_ns
    assert data.prediction(0, edits[:1]).replayed is usual


def test_left_out_ranks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.RANKS_VARIABLE, json.dumps("sample:2"))
    app = drawn("overview")
    assert len(data.open_numbered(0).ranks) == 2
    assert "10 of 12 ranks are left out" in texts(app)
    assert "mean step of 2 ranks" in texts(app)


def test_the_straggler_of_some_ranks_is_not_that_of_the_job() -> None:
    """The page said that no rank delays the others, although one that was not selected does."""
    app = drawn("ranks", ranks="4-5")
    heading = next(text.proto.body for text in app.get("html") if "usp-verdict" in text.proto.body)
    assert "2 of 12 ranks (4-5) only: No rank delays the others" in heading
