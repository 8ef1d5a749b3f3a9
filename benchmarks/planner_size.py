"""Search time of the planner in CPU seconds, so that busy and idle machines give the same result.

    python benchmarks/planner_size.py

Bars: a million configurations in 20 CPU seconds (10 s on two cores), and Llama-3-405B on 16,384 devices in 5 s.
"""

from __future__ import annotations

import sys
import time

from usp_prof.extras.planner.cluster import cluster_of
from usp_prof.extras.planner.question import Question
from usp_prof.extras.planner.search import search
from usp_prof.model.known_models import model_named

QUESTIONS = (
    ("Llama-3-405B, 16,384 H100, 2,048 sequences of 8,192", ("Llama-3-405B", 8192, 16384, 2048), 5.0),
    ("Qwen3-235B-A22B, 2,048 H100, 4,096 sequences of 4,096", ("Qwen3-235B-A22B", 4096, 2048, 4096), None),
)
OF_A_MILLION = 20.0


def main() -> int:
    """Print the table."""
    cluster = cluster_of("H100")
    met = True
    sys.stdout.write("| question | configurations | CPU s | CPU s a million |\n|---|---|---|---|\n")
    for title, (name, sequence, devices, batch), most in QUESTIONS:
        question = Question(model_named(name, sequence), cluster, devices=devices, batch=batch)
        begun = time.process_time()
        tried = search(question).tried
        spent = time.process_time() - begun
        of_a_million = spent / tried * 1e6
        sys.stdout.write(f"| {title} | {tried:,} | {spent:.1f} | {of_a_million:.1f} |\n")
        met &= of_a_million <= OF_A_MILLION if most is None else spent <= most
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
