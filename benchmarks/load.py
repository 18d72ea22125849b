"""How models load: time, and peak memory against the packed weights, each MODEL in a process of its own.

    python benchmarks/load.py MODEL... [--loads 20] [--isa NAME] [--precision exact|int8]

The first load of a process also imports what skyinfer needs and reads files into the page cache, so it is given three
ways: the imports, the first load after them, and the median of the later ones. The peak is that of the whole process,
interpreter and imports included, at the end of the first load; on Linux it counts pages of mapped files, too.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import sys
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter

import skyinfer
from skyinfer.arguments import add_precision_option

_MB = 1 << 20

# what a load imports by and by
_PACKAGES = ("gguf", "jinja2.sandbox", "tokenizers")


def _peak_bytes() -> int:
    if Path("/proc/self/status").exists():
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(status["VmHWM"].split()[0]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _measure(path: str, loads: int, isa: str | None, precision: str, results: Connection) -> None:
    """Sends seconds of imports, first load and median of later ones, then bytes of packed weights and at the peak."""
    warnings.simplefilter("ignore", RuntimeWarning)  # of temperatures that are clamped
    times = [perf_counter()]
    for name in ("skyinfer.files.checkpoint", "skyinfer.model", *_PACKAGES):
        importlib.import_module(name)
    peak = packed = 0
    for _ in range(1 + loads):
        times.append(perf_counter())
        model = skyinfer.load(path, isa=isa, precision=precision)
        times.append(perf_counter())
        peak, packed = peak or _peak_bytes(), model.engine.core.n_bytes
        del model
    taken = [end - begin for begin, end in zip(times[1::2], times[2::2], strict=True)]
    results.send((times[1] - times[0], taken[0], median(taken[1:]) if loads else float("nan"), packed, peak))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--loads", type=int, default=20)
    parser.add_argument("--isa")
    add_precision_option(parser)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    columns = ("imports ms", "first ms", "later ms", "packed MB", "peak MB", "peak/packed")
    print("".join(f"{column:>12}" for column in columns), " model")
    for path in options.models:
        receiver, sender = context.Pipe(duplex=False)
        asked = (path, options.loads, options.isa, options.precision, sender)
        process = context.Process(target=_measure, args=asked)
        process.start()
        sender.close()
        try:
            imports, first, later, packed, peak = receiver.recv()
        except EOFError:
            raise SystemExit(1) from None  # the process has said what is wrong
        process.join()
        numbers = (imports * 1e3, first * 1e3, later * 1e3, packed / _MB, peak / _MB)
        print("".join(f"{number:>12.1f}" for number in numbers), f"{peak / packed:>12.2f}", f" {path}", sep="")


if __name__ == "__main__":
    main()
