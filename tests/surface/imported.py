"""Import of every module of an installed usp-prof; scripts/test-wheels runs it with `-W error` and an extra's name.

A module may only lack packages of another extra.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import usp_prof
from usp_prof.cli.app import EXTRAS

OTHERS = dict.fromkeys(("pytest", "transformers", "accelerate", "lightning", "megatron", "deepspeed"), "-")
"""Packages that no extra of ours brings: each is there where its own users are."""


def main() -> int:
    """Import all modules and print failures."""
    failed = []
    for module in pkgutil.walk_packages(usp_prof.__path__, "usp_prof."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            extra = {**EXTRAS, **OTHERS}.get((error.name or "").partition(".")[0])
            if extra is None or extra == sys.argv[1]:
                failed.append(f"{module.name}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever keeps a module from being imported
            failed.append(f"{module.name}: {error!r}")
    print(*failed, sep="\n", end="\n" if failed else "")  # noqa: T201 - a script
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
