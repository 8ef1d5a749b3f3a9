"""Models by name: published shapes of common models; other models are read from a file."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from usp_prof.contract import ModelEntry
from usp_prof.model.errors import UsageError, unknown_name
from usp_prof.model.files import is_there
from usp_prof.model.flops import describe, load
from usp_prof.model.shape import missing_sizes

FILE = Path(__file__).with_name("known_models.json")


def model_named(name: str, sequence: int = 0) -> ModelEntry:
    """Return a model by name (`Llama-3-8B`, `llama3.1 8b`), or from a file (config.json, or our own fields)."""
    path = Path(name)
    if path.suffix == ".json" or is_there(path):
        return _with_all_sizes(load(path, sequence), path)
    known_name = _by_letters().get(_letters(name))
    if known_name is None:
        raise unknown_name("model", name, list(model_names()), list_command="usp-prof plan --models-known")
    model = describe(json.loads(FILE.read_text())[known_name])
    return replace(model, name=known_name, sequence=sequence, flop_per_token={})


def _with_all_sizes(model: ModelEntry, path: Path) -> ModelEntry:
    if missing := missing_sizes(model):
        raise UsageError(
            f"{path} gives no {', '.join(missing)}: without it, this would be the plan of a smaller model",
            hint="give a Hugging Face config.json, or JSON with layers, hidden, heads, kv_heads, ffn_hidden, vocab",
        )
    return model


@lru_cache(maxsize=1)
def model_names() -> tuple[str, ...]:
    """Return the names of the models that need no file."""
    return tuple(json.loads(FILE.read_text()))


@lru_cache(maxsize=1)
def _by_letters() -> dict[str, str]:
    return {_letters(name): name for name in model_names()}


def _letters(name: str) -> str:
    """Reduce a name to what distinguishes shapes: Llama 3.1 becomes Llama 3; remarks in brackets are dropped."""
    letters = "".join(c for c in name.lower().split("(")[0] if c.isalnum())
    return letters.replace("llama31", "llama3").replace("meta", "")
