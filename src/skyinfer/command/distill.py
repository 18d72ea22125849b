"""`skyinfer distill`: a small model that answers as a teacher does, who may be a model or an endpoint over HTTP."""

from __future__ import annotations

import argparse
import os

from ..arguments import A_MODEL, add_precision_option, number_in
from ..errors import SkyinferError, lacking
from ..terminal import put_json, put_line, say
from .request_file import read_questions
from .signals import termination_raised
from .train import check_start, training_faults_told

SUMMARY = "Train a small model on a larger one's answers, or on those of an endpoint over HTTP."

# those that `distill` has under the same names, or passes on to training
_OPTIONS = ("answers", "at_once", "rate", "retries", "precision", "price", "only_cost", "size", "architecture", "init",
            "epochs", "seed", "threads", "force")  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("states", metavar="STATES", help="a file of JSON Lines, the field state of each object; or .txt, a text a line")
    add("-q", "--questions", metavar="QUESTIONS.json", required=True, help="questions by id, or a request with them")
    add("--teacher", metavar="MODEL|URL", required=True, help=f"{A_MODEL}; or the address of POST /v1/systemone")
    add_precision_option(parser, of="the teacher, where it is a MODEL")
    add("-o", "--out", metavar="DIR", required=True, help="the checkpoint directory to write")
    add(
        "--answers", metavar="FILE", help="what the teacher said, which is not asked again (default: DIR.answers.jsonl)"
    )
    add("--only-cost", action="store_true", help="ask for little, say what the whole run will cost, and end")
    add("--price", metavar="P", type=number_in(float, 0, 1e9), help="of a million tokens, for the cost")
    add("--api-key-env", metavar="NAME", help="environment variable with the key of an endpoint")
    add("--at-once", metavar="N", type=number_in(int, 1, 256), default=4, help="requests at the same time (default: 4)")
    add("--rate", metavar="R", type=number_in(float, 1e-6, 1e6), help="requests a second at most (default: no limit)")
    add(
        "--retries", metavar="N", type=number_in(int, 0, 100), default=5,
        help="how often a failed request is tried again (default: 5)",
    )  # fmt: skip
    add("--size", metavar="NAME", help="of the student: pico, nano or micro (default: pico; not with --init)")
    add("--architecture", metavar="NAME", help="of the student: s1, a Laya model (default), or s2")
    add("--init", metavar="MODEL", help="start from this checkpoint or GGUF file")
    add("--epochs", metavar="N", type=float, help="passes over the answers (default: by their number)")
    add(
        "--seed", metavar="S", type=int, default=0, help="of training, and of the states that are held out (default: 0)"
    )
    add("--threads", metavar="N", type=int, help="default: the CPUs that the process may use")
    add("--force", action="store_true", help="replace the checkpoint, or the unfinished training, in DIR")
    add("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace) -> None:
    try:
        import torch as _  # noqa: F401
    except ImportError as error:
        needs = "distilling needs the package torch: pip install 'skyinfer[train]'"
        raise SkyinferError(str(lacking(needs, error))) from error
    from ..distillation import distill
    from ..distillation.distilling import answers_path, states_of
    from ..files.whole_file import refuse_inputs

    check_start(arguments)
    key = None
    if arguments.api_key_env is not None:
        key = os.environ.get(arguments.api_key_env)
        if not key:
            arguments.parser.error(f"--api-key-env: the environment variable {arguments.api_key_env} is not set")
    if arguments.answers is not None:
        refuse_inputs(arguments.answers, arguments.states, arguments.questions)
    questions, states = read_questions(arguments.questions), states_of(arguments.states)
    kept = answers_path(arguments.out, arguments.answers)
    with termination_raised(), training_faults_told(arguments, "the same command goes on from here", kept):
        try:
            found = distill(
                states,
                questions,
                arguments.teacher,
                arguments.out,
                key=key,
                say=say,
                **{name: getattr(arguments, name) for name in _OPTIONS},
            )
        except ImportError as error:
            raise SkyinferError(str(error)) from error
    if found is None:
        return
    if arguments.json:
        put_json(found.report)
    else:
        put_line(found.as_text())
