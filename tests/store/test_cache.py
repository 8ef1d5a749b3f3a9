"""Cache entries: complete, bounded, and unchanged when read back."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from usp_prof.model.errors import InputError, UsageError
from usp_prof.store import entry
from usp_prof.store.cache import (
    DEFAULT_BYTES,
    IN_USE_SECONDS,
    LEFT_OVER_SECONDS,
    UNBOUNDED,
    Cache,
    CacheUnwritableError,
)
from usp_prof.store.places import open_cache
from usp_prof.store.rank_jobs import content_key

TABLE = pa.table({"n": [1, -1, 2**62], "t": pa.array(["a", "", "a"]).dictionary_encode(), "x": [0.5, None, 1.0]})


def test_stored_tables_are_read_back(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "made" / "here")
    assert cache.open("k") is None
    stored = cache.store("k", {"one": TABLE, "two": TABLE.slice(0, 0)}, {"note": "said"})
    again = cache.open("k")
    assert again is not None
    assert again.note["note"] == stored.note["note"] == "said"
    assert again.names() == ("one", "two")
    assert again.table("one").equals(TABLE)
    assert again.table("one").schema == TABLE.schema
    assert again.table("two").num_rows == 0


@given(
    numbers=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30),
    words=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=30),
)
def test_any_columns_are_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], words: list[str]
) -> None:
    cache = Cache(tmp_path_factory.mktemp("cache"))
    tables = {
        "numbers": pa.table({"n": pa.array(numbers, pa.int64())}),
        "words": pa.table({"w": pa.array(words, pa.string())}),
    }
    stored = cache.store("key", tables, {})
    assert {name: stored.table(name) for name in stored.names()} == tables


def test_the_first_of_two_writers_wins_and_both_can_read(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first, second = cache.store("k", {"t": TABLE}, {"by": 1}), cache.store("k", {"t": TABLE}, {"by": 2})
    assert first.note["by"] == second.note["by"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


def test_many_writers_and_readers_can_run_concurrently(tmp_path: Path) -> None:
    cache, seen = Cache(tmp_path), []

    def work() -> None:
        for _ in range(5):
            stored = cache.open("k") or cache.store("k", {"t": TABLE}, {})
            seen.append(stored.table("t").equals(TABLE))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 40
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


def test_a_damaged_entry_is_ignored_and_replaced(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.store("k", {"t": TABLE}, {})
    (tmp_path / "k" / "t.parquet").write_bytes(b"PAR1")
    assert cache.open("k") is None
    assert cache.store("k", {"t": TABLE}, {}).table("t").equals(TABLE)
    (tmp_path / "k" / "entry.json").write_text("{")
    assert cache.open("k") is None


def test_an_entry_with_one_flipped_bit_is_not_used(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    entry = cache.store("k", {"t": TABLE, "u": TABLE}, {"note": "said"}).folder
    for path in sorted(entry.iterdir()):
        content = path.read_bytes()
        for place in range(0, len(content), max(1, len(content) // 40)):
            flipped = bytearray(content)
            flipped[place] ^= 1 << (place % 8)
            path.write_bytes(flipped)
            assert Cache(tmp_path).open("k") is None, (path.name, place)
        path.write_bytes(content)
    assert cache.open("k") is not None


def test_an_entry_under_another_name_is_not_used(tmp_path: Path) -> None:
    """A copy or a restored backup may look like this. One rank's figures used to be shown for another."""
    cache = Cache(tmp_path)
    for key, number in (("a", 1), ("b", 2)):
        cache.store(key, {"t": pa.table({"n": [number]})}, {})
    cache.derive("one", lambda folder: _fill(folder, 1))
    cache.derive("two", lambda folder: _fill(folder, 2))
    derived = sorted(path for path in tmp_path.iterdir() if path.name.startswith("derived-"))
    for first, second in ((tmp_path / "a", tmp_path / "b"), derived):
        first.rename(tmp_path / "between")
        second.rename(first)
        (tmp_path / "between").rename(second)
    assert cache.open("a") is None
    assert cache.damaged["a"] == "entry.json is that of b"
    assert cache.store("a", {"t": pa.table({"n": [1]})}, {}).table("t")["n"].to_pylist() == [1]
    again = cache.derive("one", lambda folder: _fill(folder, 9))
    assert sum(file.stat().st_size for file in again.iterdir() if file.name != entry.NAME) == 9


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"null",
        b"[]",
        b'{"seal": "x", "content": {}}',
        b'{"seal": 1, "content": 2}',
        b"[" * 100_000,
        b"\0" * 99,
    ],
)
def test_an_entry_with_other_contents_is_damaged(tmp_path: Path, text: bytes) -> None:
    cache = Cache(tmp_path)
    (cache.store("k", {"t": TABLE}, {}).folder / "entry.json").write_bytes(text)
    assert cache.open("k") is None
    assert "entry.json" in cache.damaged["k"]
    assert cache.store("k", {"t": TABLE}, {}).table("t").equals(TABLE)


def test_an_entry_of_another_version_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    monkeypatch.setattr(entry, "VERSION", 99)
    cache.store("k", {"t": TABLE}, {})
    monkeypatch.undo()
    assert cache.open("k") is None
    assert cache.damaged["k"] == "entry.json has version 99, not 2"


def test_an_incomplete_folder_is_rewritten(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "t.parquet").write_bytes(b"PAR1")
    cache = Cache(tmp_path)
    assert cache.open("k") is None
    assert cache.store("k", {"t": TABLE}, {}).table("t").equals(TABLE)


def test_leftovers_of_a_killed_writer_are_removed_and_running_writes_kept(tmp_path: Path) -> None:
    for name, age in (("aside-dead", LEFT_OVER_SECONDS + 60), ("aside-alive", 3600)):
        (tmp_path / name).mkdir()
        used = time.time() - age
        os.utime(tmp_path / name, (used, used))
    Cache(tmp_path).store("k", {"t": TABLE}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["aside-alive", "k"]


@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
def test_other_users_cannot_read_entries(tmp_path: Path) -> None:
    entry = Cache(tmp_path).store("k", {"t": TABLE}, {}).folder
    assert {path.stat().st_mode & 0o777 for path in entry.iterdir()} == {0o600}
    assert entry.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.name != "posix", reason="rights as POSIX has them")
def test_a_group_with_write_access_can_read_entries(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    cache = Cache(tmp_path)
    entry = cache.store("k", {"t": TABLE}, {}).folder
    assert {path.stat().st_mode & 0o777 for path in entry.iterdir()} == {0o660}
    assert entry.stat().st_mode & 0o777 == 0o770
    derived = cache.derive("d", lambda folder: (folder / "deep").mkdir())
    assert {path.stat().st_mode & 0o070 for path in (derived, derived / "deep")} == {0o070}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_entry_is_neither_damaged_nor_replaced(tmp_path: Path) -> None:
    entry = Cache(tmp_path).store("k", {"t": TABLE}, {}).folder
    entry.chmod(0)
    cache = Cache(tmp_path)
    assert cache.open("k") is None
    assert not cache.damaged
    with pytest.raises(CacheUnwritableError, match="another user's"):
        cache.store("k", {"t": TABLE}, {})
    entry.chmod(0o700)
    assert cache.open("k") is not None


def test_a_read_only_store_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cache(tmp_path).store("k", {"t": TABLE}, {})

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refuse)
    stored = Cache(tmp_path).open("k")
    assert stored is not None
    assert stored.table("t").equals(TABLE)


def test_a_table_damaged_while_it_is_open_is_refused(tmp_path: Path) -> None:
    stored = Cache(tmp_path).store("k", {"t": TABLE}, {})
    path = stored.path("t")
    stored.view("t").num_rows  # noqa: B018 - reads the footer
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(InputError, match="damaged"):
        stored.view("t").to_table()


def test_the_least_recently_used_entry_is_removed_first(tmp_path: Path) -> None:
    size = sum(file.stat().st_size for file in Cache(tmp_path / "probe").store("k", {"t": TABLE}, {}).folder.iterdir())
    cache = Cache(tmp_path / "cache", limit_bytes=2 * size + size // 2)
    for age, key in ((3000, "a"), (2000, "b")):
        entry = cache.store(key, {"t": TABLE}, {}).folder / "entry.json"
        used = entry.stat().st_mtime - age
        os.utime(entry, (used, used))
    later = Cache(cache.folder, cache.limit_bytes)
    assert later.open("a") is not None  # used just now: b is the oldest
    later.store("c", {"t": TABLE}, {})
    assert sorted(path.name for path in cache.folder.iterdir()) == ["a", "c"]


def test_recently_used_entries_stay_beyond_the_size_limit(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=1)
    first = cache.store("a", {"t": TABLE}, {})
    cache.store("b", {"t": TABLE}, {})
    assert first.table("t").num_rows == 3
    long_ago = first.folder.stat().st_mtime - IN_USE_SECONDS - 60
    os.utime(first.folder / "entry.json", (long_ago, long_ago))
    Cache(tmp_path, limit_bytes=1).store("c", {"t": TABLE}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]


def test_the_first_ranks_of_a_slow_read_are_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=1)
    for rank in ("0", "1", "2"):
        entry = cache.store(rank, {"t": TABLE}, {}).folder / "entry.json"
        os.utime(entry, (1, 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_a_folder_without_a_limit_loses_nothing(tmp_path: Path) -> None:
    for rank in ("0", "1", "2"):
        entry = Cache(tmp_path, UNBOUNDED).store(rank, {"t": TABLE}, {}).folder / "entry.json"
        os.utime(entry, (1, 1))
    Cache(tmp_path, UNBOUNDED).tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]


def test_derived_files_survive_other_writes_while_they_are_made(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def make(folder: Path) -> None:
        _fill(folder, 3)
        for minutes_ago in (20, 200):
            os.utime(folder, (time.time() - 60 * minutes_ago,) * 2)
            Cache(tmp_path).store(str(minutes_ago), {"t": TABLE}, {})

    assert (cache.derive("report", make) / "file").exists()


def test_tables_that_were_cleared_raise_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "_SMALL", 0)  # otherwise small tables are read when they are opened
    cache = Cache(tmp_path)
    stored = cache.store("a", {"t": TABLE, "u": TABLE}, {})
    seen = stored.view("u")
    assert seen.num_rows == 3
    cache.clear()
    with pytest.raises(InputError, match="cleared") as caught:
        stored.table("t")
    assert "again" in caught.value.hint
    with pytest.raises(InputError, match="cleared"):
        seen.column("n")


def test_an_entry_larger_than_the_limit_can_be_used_by_its_writer(tmp_path: Path) -> None:
    assert Cache(tmp_path, limit_bytes=1).store("k", {"t": TABLE}, {}).table("t").num_rows == 3


def test_a_cache_can_be_measured_and_cleared(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.size().entries == 0
    cache.store("a", {"t": TABLE}, {})
    cache.store("b", {"t": TABLE}, {})
    (tmp_path / "aside-dead").mkdir()
    size = cache.size()
    assert size.entries == 2
    assert size.size_bytes > 0
    assert cache.clear() == size
    assert list(tmp_path.iterdir()) == []
    assert Cache(tmp_path / "never").clear().entries == 0


def test_derived_files_are_made_once_counted_and_cleared(tmp_path: Path) -> None:
    cache, calls = Cache(tmp_path), []

    def write(folder: Path) -> None:
        calls.append(folder)
        (folder / "below").mkdir()
        (folder / "below" / "picture.bin").write_bytes(b"12345")

    folder = cache.derive("timeline-1 a b", write)
    assert (folder / "below" / "picture.bin").read_bytes() == b"12345"
    assert cache.derive("timeline-1 a b", write) == folder
    assert len(calls) == 1
    assert cache.derive("timeline-2 a b", write) != folder
    size = cache.size()
    assert (size.entries, size.derived) == (0, 2)
    assert size.size_bytes >= 10
    (folder / "below" / "picture.bin").write_bytes(b"123")
    assert cache.derive("timeline-1 a b", write) == folder
    assert len(calls) == 3
    assert cache.clear().derived == 2
    assert list(tmp_path.iterdir()) == []


def test_derived_files_are_removed_at_the_size_limit(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=3000)
    first = cache.derive("one", lambda folder: _fill(folder, 2000))
    os.utime(first / "entry.json", (1, 1))
    second = Cache(tmp_path, limit_bytes=3000).derive("two", lambda folder: _fill(folder, 2000))
    assert not first.exists()
    assert second.exists()


def _fill(folder: Path, size: int) -> None:
    (folder / "file").write_bytes(bytes(size))


def test_a_failed_derived_file_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        _fill(folder, 3)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - our own, bare
        Cache(tmp_path).derive("one", fail)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_reports_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheUnwritableError) as caught:
        Cache(tmp_path / "file" / "below").store("k", {"t": TABLE}, {})
    assert "--cache-dir" in caught.value.hint


def test_the_key_covers_content_rank_and_version(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "other"
    first.write_bytes(b"same")
    second.write_bytes(b"same")
    assert content_key(first, 1, "v") == content_key(second, 1, "v")
    assert len({content_key(first, 1, "v"), content_key(first, 2, "v"), content_key(first, 1, "w")}) == 3
    stat = first.stat()
    first.write_bytes(b"sane")
    os.utime(first, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert content_key(first, 1, "v") != content_key(second, 1, "v")
    with pytest.raises(InputError):
        content_key(tmp_path / "nothing")


def test_environment_variables_set_the_cache_folder_and_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USP_PROF_CACHE", str(tmp_path / "told"))
    monkeypatch.setenv("USP_PROF_CACHE_SIZE", "1000")
    assert open_cache().folder == tmp_path / "told"
    assert open_cache().limit_bytes == 1000
    assert open_cache(tmp_path / "chosen").folder == tmp_path / "chosen"
    assert open_cache(tmp_path / "chosen").limit_bytes == 1000
    monkeypatch.delenv("USP_PROF_CACHE_SIZE")
    assert open_cache().limit_bytes == DEFAULT_BYTES
    assert open_cache(tmp_path / "chosen").limit_bytes == UNBOUNDED
    monkeypatch.setenv("USP_PROF_CACHE_SIZE", "much")
    with pytest.raises(UsageError):
        open_cache()


@pytest.mark.parametrize(
    ("platform", "variable", "below"),
    [
        ("linux", "XDG_CACHE_HOME", "usp-prof"),
        ("win32", "LOCALAPPDATA", "usp-prof/cache"),
        ("darwin", "HOME", "Library/Caches/usp-prof"),
    ],
)
def test_the_cache_folder_of_the_user_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, variable: str, below: str
) -> None:
    monkeypatch.delenv("USP_PROF_CACHE", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr("sys.platform", platform)
    assert open_cache().folder == tmp_path / Path(below)
