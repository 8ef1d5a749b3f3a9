"""`usp-prof learn`: it lists lessons, and shows one without recording if its recordings exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from usp_prof.cli.app import main
from usp_prof.cli.commands import dashboard
from usp_prof.extras.learn.lessons import LESSONS

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_lessons_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[1 : 1 + len(LESSONS)]] == list(LESSONS)


def test_a_lesson_shows_measurement_and_theory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "ring", "--output", str(tmp_path), "--cache-dir", str(tmp_path / "cache")]) == 0
    shown = capsys.readouterr().out
    assert "zigzag" in shown
    assert "theory" in shown
    assert "missed" not in shown
    assert "?" in shown
    assert not (tmp_path / "ring").exists()


def test_an_unknown_lesson_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "rings"]) == 2
    assert "ring" in capsys.readouterr().err


def test_opening_needs_a_lesson(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "--open"]) == 2
    assert "usp-prof learn" in capsys.readouterr().err


def test_the_dashboard_opens_on_the_lesson(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[str] = []
    monkeypatch.setattr(dashboard, "serve", lambda _words, _environment, link: links.append(link) or 0)
    assert main(["learn", "ring", "--open", "--output", str(tmp_path), "--cache-dir", str(tmp_path / "cache")]) == 0
    assert [link.rpartition("/")[2] for link in links] == ["learn"]
