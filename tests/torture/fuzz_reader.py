"""Coverage-guided fuzzing of the trace reader with Atheris, from a small corpus; only `UspProfError` may come out.

    pip install atheris
    python tests/torture/fuzz_reader.py /tmp/found tests/torture/corpus -max_total_time=3600 -rss_limit_mb=4000

Atheris is no dependency: it has wheels for Linux only. libFuzzer writes new inputs into the first folder, and an input
that fails beside it; what failed becomes an entry of the corpus, which test_torture.py reads without Atheris.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import warnings
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]


def read_bytes(data: bytes) -> None:
    """Read a trace and build its tables."""
    from usp_prof.model.errors import UspProfError  # noqa: PLC0415 - imported while it is instrumented
    from usp_prof.store.rank_jobs import build  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "rank0.json"
        path.write_bytes(data)
        with contextlib.suppress(UspProfError):
            build(path, 0, None)


def main() -> None:
    """Instrument our own modules and go on until libFuzzer's limits."""
    import atheris  # noqa: PLC0415 - optional: the suite reads the corpus without it

    with atheris.instrument_imports(include=["usp_prof"]):
        read_bytes(b"{}")
    warnings.simplefilter("error")
    atheris.Setup(sys.argv, read_bytes)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
