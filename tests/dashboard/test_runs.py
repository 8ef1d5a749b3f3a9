"""Links to runs by name and contents: they survive a restart or another order, and never show another run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest
from drawn import drawn, framed, naming

from dashboard import data, served_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a folder with two runs."""
    for run in ("first", "second"):
        (tmp_path / "runs" / run).mkdir(parents=True)
        for file in sorted((TRACES / "recorded-1f1b").glob("*.json*"))[:2]:
            shutil.copy(file, tmp_path / "runs" / run / file.name)
    return tmp_path


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("cache")


def test_a_link_shows_the_same_run_after_a_restart_in_another_order(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [TRACES / "recorded-1f1b", TRACES / "recorded-interleaved"]
    with naming(runs, cache, monkeypatch):
        key = served_runs.key(1)
        assert key.startswith("recorded-interleaved~")
        assert served_runs.name(served_runs.index_of(key)) == "recorded-interleaved"
    with naming(runs[::-1], cache, monkeypatch):
        assert served_runs.name(served_runs.index_of(key)) == "recorded-interleaved"
        app = framed(run=key)
        assert all(parse_qs(link.proto.query_string)["run"] == [key] for link in app.get("page_link"))


@pytest.mark.parametrize("run", ["1", "999", "recorded-1f1b~00000000", "elsewhere"])
def test_an_unknown_run_is_refused_with_the_list(run: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with naming([TRACES / "recorded-1f1b", TRACES / "recorded-interleaved"], cache, monkeypatch):
        app = framed(run=run)
        assert "is not served here" in app.error[0].value
        assert [link.proto.label for link in app.get("page_link")] == ["recorded-1f1b", "recorded-interleaved"]


def test_a_run_is_compared_with_the_nearest_similar_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [TRACES / name for name in ("recorded-1f1b", "recorded-slow-rank", "recorded-slow-rank-repaired")]
    with naming(runs, cache, monkeypatch):
        pages = [drawn("compare", run=served_runs.key(index)) for index in range(3)]
        assert [page.selectbox[0].value for page in pages] == [None, 2, 1]  # the first has another model
        assert "No other run has the device and the work of recorded-1f1b" in pages[0].info[0].value.replace("\\", "")
        chosen = pages[0].selectbox[0].set_value(1).run()
        assert "".join(chosen.query_params["before"]) == served_runs.key(1)
        assert "nother model" in chosen.warning[0].value


def test_every_link_names_its_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with naming([TRACES / "recorded-1f1b"], cache, monkeypatch):
        assert all(
            parse_qs(link.proto.query_string)["run"] == [served_runs.key(0)] for link in framed().get("page_link")
        )


def test_another_run_drops_the_choices_of_the_one_before(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with naming([TRACES / "recorded-1f1b", TRACES / "recorded-interleaved"], cache, monkeypatch):
        app = framed(picked="0.50", range="5-50", find="gemm", ranks="0-1")
        app.sidebar.selectbox[0].set_value(1).run()
        assert {name: "".join(value) for name, value in app.query_params.items()} == {"run": served_runs.key(1)}


@pytest.mark.parametrize(
    ("address", "remark"),
    [
        ({"ranks": "77"}, "Rank 77 is not in this run. All ranks are shown."),
        ({"ranks": "0,77,x"}, "Rank 77, x is not in this run. The others are shown."),
        ({"steps": "999"}, "Step 999 is not in"),
        ({"steps": "last"}, "Step last is not in"),
        ({"steps": "1-last"}, "Step 1-last is not in"),
        ({"open": "by-rank", "order": "nosuch"}, "order=nosuch is not offered here. The page shows its default."),
    ],
)
def test_a_selection_that_the_run_lacks_is_reported(
    address: dict[str, str], remark: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with naming([TRACES / "recorded-1f1b"], cache, monkeypatch):
        app = framed(**address)
        assert any(remark in warning.value for warning in app.warning)
        assert "The step takes" in next(text.proto.body for text in app.get("html") if "usp-verdict" in text.proto.body)
        assert {name: "".join(value) for name, value in app.query_params.items()} == address
        assert not framed(ranks="0-1").warning


def test_a_value_that_a_page_does_not_offer_is_reported_until_another_is_chosen(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with naming([], cache, monkeypatch):  # Plan is the first page then
        app = framed(model="nosuch", devices="0", view="One configuration", tp="3")
        expected = [
            f"{name} is not offered here. The page shows its default." for name in ("model=nosuch", "devices=0", "tp=3")
        ]
        assert [warning.value.replace("\\", "") for warning in app.warning] == expected
        next(box for box in app.selectbox if box.label == "Model").set_value("Llama-3-70B").run()
        assert [warning.value.replace("\\", "") for warning in app.warning] == expected[1:]
        assert "".join(app.query_params["model"]) == "Llama-3-70B"
        assert not framed(model="Llama-3-70B", view="One configuration", tp="2").warning


def test_a_run_that_changes_on_disk_is_reported_and_read_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(TRACES / "recorded-1f1b", run)
    with naming([run], cache, monkeypatch):
        app, key = framed(), served_runs.key(0)
        assert not app.warning
        last = max(run.glob("*.json.gz"))
        last.unlink()
        app.run()
        assert "were deleted on disk" in app.warning[0].value
        next(button for button in app.button if button.label == "Read again").click().run()
        assert not any("on disk" in warning.value for warning in app.warning)
        assert served_runs.key(0) != key
        assert len(data.open_numbered(0).ranks) == 3


def test_the_other_runs_are_listed_if_one_cannot_be_opened(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(TRACES / "recorded-1f1b", run)
    with naming([run, TRACES / "recorded-interleaved"], cache, monkeypatch):
        app = framed()
        shutil.rmtree(run)
        app.run()
        next(button for button in app.button if button.label == "Read again").click().run()
        assert "does not exist" in app.error[0].value
        assert [link.proto.label for link in app.get("page_link")] == ["recorded-interleaved"]


def test_all_runs_of_a_folder_are_listed_and_named_apart(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with naming([folder / "runs"], cache, monkeypatch):
        assert sorted(run.name for run in served_runs.runs()) == ["runs: first", "runs: second"]
        assert len({served_runs.key(index) for index in (0, 1)}) == 2
        captions = [caption.value for caption in framed().caption]  # it named the folder, whichever run was shown
        assert any(caption.endswith(f"read from `{served_runs.name(0)}`") for caption in captions)
