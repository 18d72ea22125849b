"""`skyinfer convert`: a checkpoint directory as one GGUF file."""

from __future__ import annotations

import argparse
import sys

from ..files.outtypes import OUTTYPES
from ..terminal import Progress, flush_stdout, printable, put_line, size
from .signals import termination_raised

SUMMARY = "Write a checkpoint directory as one GGUF file."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "checkpoint",
        metavar="CHECKPOINT_DIR",
        help="directory with rl_agent_config.json and weights, or OWNER/NAME on the Hugging Face hub",
    )
    add("-o", "--out", metavar="OUT.gguf", required=True, help="the file to write")
    add("--outtype", choices=OUTTYPES, default="f16", help="number type of the matrices (default: f16)")
    add("--pre", metavar="NAME", help="tokenizer.ggml.pre, where the tokenizer should not decide")
    add("--name", metavar="NAME", help="general.name (default: the directory's name)")
    add("--force", action="store_true", help="replace an existing file")


def run(arguments: argparse.Namespace) -> None:
    from ..files.conversion import convert

    with termination_raised(), Progress(sys.stderr) as progress:
        path = convert(
            arguments.checkpoint,
            arguments.out,
            outtype=arguments.outtype,
            pre=arguments.pre,
            name=arguments.name,
            force=arguments.force,
            progress=progress.show,
        )
    wrote = f"{printable(str(path))}: {size(path.stat().st_size)}, {arguments.outtype}"
    try:
        put_line(f"wrote {wrote}")
        flush_stdout()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; but the file was written: {wrote}", error.filename) from error
