"""`skyinfer info`: version, CPU and instruction sets."""

from __future__ import annotations

import argparse

from ..terminal import put_json, put_line

SUMMARY = "Show version, CPU and instruction sets, and which one would run."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    from ..model import info

    facts = info()
    if arguments.json:
        put_json(facts)
        return
    isa = facts["isa"]
    put_line(f"skyinfer {facts['version']}, Python {facts['python']}, {facts['platform']}")
    put_line(f"  cpu                {facts['cpu']}, {facts['cpus']} usable")
    put_line(f"  instruction sets   {', '.join(isa['built_in'])}")
    put_line(f"  this CPU runs      {', '.join(isa['supported'])}")
    put_line(f"  a model would run  {isa['selected']}")
    precision = facts["precision"]
    put_line(
        f"  in precision       {precision['selected']}; also: {', '.join(precision['supported'][1:])} (--precision)"
    )
