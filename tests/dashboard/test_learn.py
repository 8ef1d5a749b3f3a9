"""Learn page: every lesson is shown, with links to its open runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drawn import SCRIPT, drawn, naming
from streamlit.testing.v1 import AppTest

from dashboard import served_runs
from dashboard.pages import learn
from usp_prof.extras.learn.course import picture, recorded
from usp_prof.extras.learn.lessons import LESSONS, lesson

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(autouse=True)
def ring_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Open the two runs of the lesson on the ring, and another between them."""
    runs = [TRACES / name for name in ("recorded-ring-contiguous", "recorded-1f1b", "recorded-ring-zigzag")]
    with naming(runs, tmp_path, monkeypatch):
        yield


def test_the_page_opens_on_the_lesson_whose_runs_are_open() -> None:
    app = drawn("learn")
    assert app.selectbox[0].value == "ring"
    assert any("ring" in block.value for block in app.code)


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_shown_with_its_text_and_its_command(name: str) -> None:
    app = drawn("learn", lesson=name)
    texts = [text.value for text in app.markdown]
    assert lesson(name).explanation.strip() in [text.strip() for text in texts]
    assert f"usp-prof learn {name} --open" in [block.value for block in app.code]
    assert ("**Results**" in texts) == (name in recorded())


def test_a_lesson_opens_with_what_its_runs_show() -> None:
    text = drawn("learn", lesson="interleaved").get("html")[0].proto.body
    assert f"{lesson('interleaved').shows[0].says.rstrip('.')}: " in text
    assert "(interleaved) instead of " in text


def test_an_unknown_lesson_in_the_address_shows_the_first() -> None:
    assert drawn("learn", lesson="<script>").selectbox[0].value == "ring"


def test_open_runs_are_found_by_their_path() -> None:
    assert learn._open_runs(lesson("ring")) == {"contiguous": 0, "zigzag": 2}
    assert learn._open_runs(lesson("overlap")) == {}


def test_every_recorded_lesson_has_a_picture_of_each_run() -> None:
    assert all(picture(lesson(name), run.name) for name in recorded() for run in lesson(name).runs)


def test_the_page_needs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with naming([], tmp_path, monkeypatch):
        assert served_runs.run_count() == 0
        assert drawn("learn").selectbox[0].value == LESSONS[0]


def test_without_a_run_the_landing_page_links_to_the_lessons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with naming([], tmp_path, monkeypatch):
        app = AppTest.from_file(str(SCRIPT), default_timeout=120).run()
        assert not app.exception
        assert [link.proto.label for link in app.get("page_link")] == ["Plan", "Learn"]
