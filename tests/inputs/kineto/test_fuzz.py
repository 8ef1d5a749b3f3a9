"""Fuzzing of the reader: any damaged trace gives tables or a `UspProfError`.

Every mutation passes through the reader and the builders of all tables, and every fourth through the whole path, from
`open_run` to the calls of the run. `USP_PROF_FUZZ_FROM` in the environment is the first seed.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tiers
import tiny
from tiers import Tier

from usp_prof import open_run
from usp_prof.model.errors import UspProfError
from usp_prof.model.schema import Scope
from usp_prof.store.load import build
from usp_prof.tables import catalog

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

FIRST = int(os.environ.get("USP_PROF_FUZZ_FROM", "0"))
COUNT = 20_000 if tiers.chosen is Tier.FULL else 800
CHUNKS = 8
WHOLE = 4
"""Of how many mutations one goes through `open_run`."""
EVENTS = 120
RECORDED = Path(__file__).parents[2] / "traces"
REAL = RECORDED.parents[1] / "shared" / "traces"
WORDS = (
    b"NaN", b"-Infinity", b"null", b"1e999", b"-1", b"0", b"99999999999999999999", b'"x"', b"[]", b"{}", b"true",
    b"\xff", b"\x00", b'"', b"\\", b"\\ud800", b"}", b"]", b"{", b"[", b",", b":", b"\n", b"1.5.5",
    b"-9223372036854775808", b'"ph":"B"', b'"ts":', b'"dur":-5', b'"args":[]', b'"args":"text"', b'"stream":"a"',
    b'"External id":1e400',
    b'"correlation":18446744073709551615', b'"baseTimeNanoseconds":"x"', b'"distributedInfo":[]',
    b'"deviceProperties":{}', b'"traceEvents":[', b"ProfilerStep#x",
)  # fmt: skip


@cache
def seeds() -> list[bytes]:
    """Return the traces to damage: synthetic ones of a GPU and a CPU rank, and the beginnings of recorded ones."""
    gpu = tiny.Trace(0, 2).group("1", [0, 1], "mesh_tp").step(3, at=0, dur=10_000)
    gpu.op("aten::mm", at=100, dur=500, dims=[[4, 8], [8, 2]]).kernel("gemm", at=1_000, dur=2_000, launch_at=200)
    gpu.collective("all_reduce", at=3_000, dur=1_000, launch_at=700, group="1", nelems=64)
    gpu.memory(50, 1024, 2048).memcpy(5_000, 10, launch_at=4_000).step(4, at=10_000, dur=9_000)
    cpu = tiny.Trace(1, 2, device="cpu").group("1", [0, 1], "mesh_dp").step(0, at=0, dur=9_000)
    cpu.op("aten::mm", at=100, dur=500, dims=[[4, 8], [8, 2]]).mark("pp::F stage=0 mb=1", at=90, dur=600)
    cpu.gloo("all_reduce", 800, 500)
    made = [trace.to_json(**options) for trace in (gpu, cpu) for options in ({}, {"indent": 1})]
    recorded = list(islice(sorted(RECORDED.glob("**/*.json.gz")), 0, None, 7))[:4]
    return made + [_beginning(path) for path in [*recorded, *_real()]]


def _real() -> list[Path]:
    """Return the last trace of each real set, if the sets are available."""
    folders = sorted(folder for kind in ("single", "odd", "gloo") for folder in (REAL / kind).glob("*"))
    files = [
        sorted(folder.glob("*.json.gz")) for folder in [*folders, REAL / "param-dlrm-8r", REAL / "torchrec-4r-v100"]
    ]
    return [matches[-1] for matches in files if matches]


def _beginning(path: Path) -> bytes:
    document = json.loads(gzip.decompress(path.read_bytes()))
    middle = len(document["traceEvents"]) // 2
    return json.dumps({**document, "traceEvents": document["traceEvents"][middle : middle + EVENTS]}, indent=1).encode()


def _cut(noise: random.Random, text: bytes) -> bytes:
    return text[: noise.randrange(len(text))]


def _drop(noise: random.Random, text: bytes) -> bytes:
    at = noise.randrange(len(text))
    return text[:at] + text[at + noise.choice((1, 1, 5, 60)) :]


def _repeat(noise: random.Random, text: bytes) -> bytes:
    at, size = noise.randrange(len(text)), noise.choice((1, 10, 300, 2_000))
    return text[: at + size] + text[at:]


def _flip(noise: random.Random, text: bytes) -> bytes:
    out = bytearray(text)
    for _ in range(noise.choice((1, 1, 3, 20))):
        out[noise.randrange(len(out))] = noise.randrange(256)
    return bytes(out)


def _insert(noise: random.Random, text: bytes) -> bytes:
    at = noise.randrange(len(text))
    return text[:at] + noise.choice(WORDS) + text[at:]


def _value(noise: random.Random, text: bytes) -> bytes:
    """Replace a whole value, so that the text stays JSON more often."""
    at = text.find(b":", noise.randrange(len(text)))
    end = min((place for mark in b",}" if (place := text.find(mark, at)) > 0), default=-1)
    return text if at < 0 or end < 0 else text[: at + 1] + noise.choice(WORDS) + text[end:]


def _shuffle(noise: random.Random, text: bytes) -> bytes:
    lines = text.splitlines(keepends=True)
    if len(lines) < 3:
        return _value(noise, text)
    first, second = noise.randrange(len(lines)), noise.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return b"".join(lines)


def _packed(noise: random.Random, text: bytes) -> bytes:
    packed = gzip.compress(text, mtime=0)
    return noise.choice((_cut, _flip, _drop))(noise, packed)


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _cut, _drop, _repeat, _flip, _insert, _value, _value, _value, _shuffle, _packed,
)  # fmt: skip


def mutated(seed: int, texts: list[bytes]) -> bytes:
    noise = random.Random(seed)  # noqa: S311 - damage, not secrets
    text = noise.choice(texts)
    for _ in range(noise.choice((1, 1, 2, 4))):
        text = noise.choice(MUTATIONS)(noise, text) or b" "
    return text


@pytest.mark.timeout(0)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_damaged_input_raises_only_our_own_error(tmp_path: Path, chunk: int) -> None:
    texts, path = seeds(), tmp_path / "rank0.json"
    nowhere = tmp_path / "no-cache"
    nowhere.write_text("")
    hints: list[str] = []
    read = 0
    names = {schema.name for schema in catalog.SCHEMAS if schema.scope is Scope.RANK}
    seeds_of_chunk = range(FIRST + chunk, FIRST + COUNT, CHUNKS)
    for seed in seeds_of_chunk:
        path.write_bytes(mutated(seed, texts))
        try:
            tables, note = build(path, 0, None)
            if seed // CHUNKS % WHOLE == 0:
                open_run(path, cache_dir=nowhere / "below").table("calls").fetchall()
        except UspProfError as error:
            hints.append(error.hint)
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        read += 1
        assert set(tables) == names, f"seed {seed}"
        assert all(row["detail"] for row in note["health"])
    assert all(hints)
    assert read > len(seeds_of_chunk) // 2, "most damage leaves something to read"
