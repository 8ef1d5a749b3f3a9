"""Version of the package, and the fingerprint of its code."""

from functools import cache
from hashlib import blake2b
from pathlib import Path

__version__ = "0.2.0"


@cache
def fingerprint(*rooms: str) -> str:
    """Return a text that changes with the code of these rooms and files, by default of the whole package.

    It is part of the keys of what is kept in the cache: what older code made is never shown as today's.
    """
    package = Path(__file__).parent
    digest = blake2b(digest_size=16)
    for place in [package / room for room in rooms] or [package]:
        for file in [place] if place.is_file() else sorted(place.rglob("*")):
            if file.suffix in {".py", ".toml", ".sql", ".json"}:
                digest.update(f"\0{file.relative_to(package)}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()
