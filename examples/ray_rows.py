"""Answers for Parquet files on all machines of a Ray cluster, or all CPUs of this one: Parquet in, Parquet out.

    pip install '.[rows]' 'ray[data]'
    python examples/ray_rows.py IN OUT -q QUESTIONS.json [-m MODEL] [--precision exact|int8] [--state COLUMN ...]
                                [--actors N]

IN is a file or a directory, OUT a directory that is made. Every actor loads the model once; one that is killed is
started again, and what it had begun is answered anew.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ray.data

from skyinfer.rows.ray import AnswerBatches


def answer_parquet(
    source: str, out: str, options: dict[str, Any], *, actors: int, answering: type[AnswerBatches] = AnswerBatches
) -> None:
    """Answers every row of `source` into `out`, in order unless a worker is lost.

    options: for each `answering` that is made.
    """
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    # Ray joins small files to one block, and no more actors work than there are blocks
    rows = ray.data.read_parquet(source).repartition(4 * actors)
    rows.map_batches(
        answering,
        fn_constructor_kwargs=options,
        batch_format="pyarrow",
        batch_size=4096,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=0.5,  # where actors take all CPUs, none is left to read and write, and Ray waits for ever
    ).write_parquet(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="IN")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("-q", "--questions", metavar="QUESTIONS.json", type=Path, required=True)
    parser.add_argument("-m", "--model", metavar="MODEL")
    parser.add_argument("--precision", choices=("exact", "int8"), default="exact")
    parser.add_argument("--state", metavar="COLUMN", nargs="+", default=["state"])
    parser.add_argument("--actors", metavar="N", type=int, default=2)
    given = parser.parse_args()
    options = {
        "questions": json.loads(given.questions.read_bytes()),
        "model": given.model,
        "precision": given.precision,
        "state": given.state[0] if len(given.state) == 1 else given.state,
    }
    answer_parquet(given.source, given.out, options, actors=given.actors)


if __name__ == "__main__":
    main()
