"""Allowed folders of a server: containment of paths after links and `..` are resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from usp_prof.extras.agent.folders import Folders
from usp_prof.model.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """Write `given/run/rank0.json`, and `secret/rank0.json` next to `given`."""
    for folder in ("given/run", "secret"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "rank0.json").write_text("{}")
    return tmp_path / "given"


@pytest.mark.parametrize("text", ["run", "run/rank0.json", "./run/../run", "."])
def test_folders_below_a_root_are_accepted(given: Path, text: str) -> None:
    assert Folders([str(given)]).place(text) == (given / text).resolve()


def test_an_absolute_path_below_a_root_is_accepted(given: Path) -> None:
    assert Folders([str(given)]).place(str(given / "run")) == given / "run"


@pytest.mark.parametrize(
    "text",
    ["..", "../secret", "run/../../secret", "/", "/etc/passwd", "", "\0", "file:///etc", "https://host/x", "S3://b"],
)
def test_paths_outside_the_roots_are_refused_with_a_hint(given: Path, text: str) -> None:
    with pytest.raises(InputError, match="only") as refused:
        Folders([str(given)]).place(text)
    assert refused.value.hint


def test_missing_and_existing_paths_outside_get_the_same_error(given: Path) -> None:
    folders = Folders([str(given)])
    messages = []
    for name in ("secret", "missing"):
        with pytest.raises(InputError) as refused:
            folders.place(f"../{name}")
        messages.append(refused.value.message.replace(f"../{name}", "").replace(f"/{name}", ""))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("place", ["link", "run/link", "run/rank1.json"])
def test_links_that_lead_outside_are_refused_also_deep_inside(given: Path, place: str) -> None:
    target = given.parent / "secret"
    (given / place).symlink_to(target / "rank0.json" if place.endswith(".json") else target)
    with pytest.raises(InputError, match="outside"):
        Folders([str(given)]).place(place.split("/", maxsplit=1)[0])


def test_a_link_inside_a_linked_folder_that_leads_outside_is_refused(given: Path) -> None:
    (given / "inner").symlink_to(given / "run")
    (given / "run" / "out").symlink_to(given.parent / "secret")
    with pytest.raises(InputError, match="outside"):
        Folders([str(given)]).place("inner")


def test_links_inside_a_root_and_circular_links_are_accepted(given: Path) -> None:
    (given / "latest").symlink_to(given / "run")
    (given / "run" / "up").symlink_to(given)
    assert Folders([str(given)]).place("latest") == given / "run"


def test_a_link_to_another_root_is_accepted(given: Path) -> None:
    (given / "other").symlink_to(given.parent / "secret")
    both = Folders([str(given), str(given.parent / "secret")])
    assert both.place("other") == given.parent / "secret"


def test_folders_with_traces_are_listed_without_following_links(given: Path) -> None:
    (given / "link").symlink_to(given.parent / "secret")
    (given / "run" / "run.json").write_text("{}")  # the manifest is no trace
    folders = Folders([str(given)]).trace_folders(10)
    assert [(folder.path, folder.files, folder.bytes) for folder in folders] == [(given / "run", 1, 2)]


@pytest.mark.parametrize("text", ["nothing", "given/run/rank0.json", "s3://bucket"])
def test_roots_must_be_local_folders(given: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(given.parent)
    with pytest.raises(InputError, match="is not a folder"):
        Folders([text])
