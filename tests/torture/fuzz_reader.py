"""Coverage-guided fuzzing of the trace reader with Atheris, from a small corpus; only `UspProfError` may be raised.

    pip install atheris
    python tests/torture/fuzz_reader.py /tmp/found tests/torture/corpus -max_total_time=3600 -rss_limit_mb=4000

Every other input is changed as JSON, by the mutations of `scripts/torture`; the rest byte by byte. Atheris is no
dependency: it has wheels for Linux only. libFuzzer writes new inputs into the first folder, and failing inputs
next to it; a failure becomes an entry of the corpus, which test_torture.py reads without Atheris.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import tempfile
import warnings
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "support")]


def read_bytes(data: bytes) -> None:
    """Read a trace and build its tables."""
    from usp_prof.model.errors import UspProfError  # noqa: PLC0415 - imported while it is instrumented
    from usp_prof.store.rank_jobs import build  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "rank0.json"
        path.write_bytes(data)
        with contextlib.suppress(UspProfError):
            build(path, 0, None)


def change(data: bytes, max_size: int, seed: int) -> bytes:
    """Change a trace in one place; return `b""` if it is not a trace or becomes too long."""
    from torture import mutations  # noqa: PLC0415 - imported while the reader is instrumented

    rng = random.Random(seed)  # noqa: S311 - a seed to repeat, no secret
    try:
        files = mutations.Files({"rank0.json": json.loads(data)}, None)
        rng.choice(mutations.OF_A_TRACE)(rng, files)
        text = mutations.text_of(files.traces["rank0.json"])
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return b""
    return text if len(text) <= max_size else b""


def main() -> None:
    """Instrument our modules and run until libFuzzer's limits."""
    import atheris  # noqa: PLC0415 - optional: the suite reads the corpus without it

    with atheris.instrument_imports(include=["usp_prof"]):
        read_bytes(b"{}")
        change(b"{}", 0, 0)
    warnings.simplefilter("error")

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        changed = change(data, max_size, seed) if seed % 2 else b""
        return changed or bytes(atheris.Mutate(data, max_size))

    atheris.Setup(sys.argv, read_bytes, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
