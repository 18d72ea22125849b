"""How long a short request takes beside long ones, of several kinds, in one server.

    python benchmarks/serving_mix.py [MODEL.gguf] [--long 20] [--bytes 1000000] [--short 20] [--extra serve-flag ...]

The server is a process, the clients are threads of this one. For each kind of long request: the short request alone
(median of a few), then while the long ones, which came first, are worked on: median, worst, and the ratio of medians.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import http.client
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from time import perf_counter

QUESTIONS = {"q": {"type": "noul", "instructions": "Up?"}}
SHORT = json.dumps({"state": "x " * 1500, "questions": QUESTIONS}).encode()
Request = tuple[str, bytes, dict[str, str]]


def kinds(n_bytes: int) -> dict[str, Request]:
    """Long requests by name: path, body, headers."""

    def body(name: str, value: object) -> bytes:
        return json.dumps({name: value, "questions": QUESTIONS}, separators=(",", ":")).encode()

    text = base64.b64encode(random.Random(1).randbytes(n_bytes * 3 // 4)).decode()
    nested = body("state", [[]] * (n_bytes // 3))
    return {
        "one text": ("/v1/systemone", body("state", text), {}),
        "nested lists": ("/v1/systemone", nested, {}),
        "objects": ("/v1/systemone", body("state", [{"a": i} for i in range(n_bytes // 13)]), {}),
        "faulty at its end": ("/v1/systemone", nested[:-1], {}),
        "compressed words": (
            "/v1/systemone",
            gzip.compress(body("state", "turn of words " * (n_bytes // 15)), 1),
            {"content-encoding": "gzip"},
        ),
        "a batch of texts": (
            "/v1/systemone/batch",
            body("states", [text[i : i + 900] for i in range(0, min(len(text), 450_000), 900)]),
            {},
        ),
    }


def ask(port: int, request: Request) -> tuple[int, float]:
    """The status, and the seconds from connecting to the end of the answer."""
    path, body, headers = request
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    start = perf_counter()
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    answer.read()
    taken = perf_counter() - start
    connection.close()
    return answer.status, taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="s1-pico, where none is named")
    parser.add_argument("--long", type=int, default=20, help="long requests at once")
    parser.add_argument("--bytes", type=int, default=1_000_000, help="of a long request's body, about")
    parser.add_argument("--short", type=int, default=20, help="short requests that are timed")
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="further flags of skyinfer serve")
    options = parser.parse_args()
    command = [sys.executable, "-m", "skyinfer", "serve", "--port", "0", "--max-body", str(2 * options.bytes)]
    command += ["-m", options.model] if options.model else []
    process = subprocess.Popen([*command, *options.extra], stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        port = int(json.loads(process.stderr.readline())["address"].rpartition(":")[2])
        threading.Thread(target=process.stderr.read, daemon=True).start()  # the log
        short: Request = ("/v1/systemone", SHORT, {})
        print(
            f"{'long requests':<20} {'alone ms':>9} {'beside ms':>10} {'worst ms':>9} {'ratio':>6} {'unfinished':>11}"
        )
        for name, request in kinds(options.bytes).items():
            alone = statistics.median(ask(port, short)[1] for _ in range(options.short))
            threads = [threading.Thread(target=ask, args=(port, request)) for _ in range(options.long)]
            for thread in threads:
                thread.start()
            time.sleep(0.2)
            found = [ask(port, short) for _ in range(options.short)]
            left = sum(thread.is_alive() for thread in threads)
            for thread in threads:
                thread.join()
            if any(status != 200 for status, _ in found):
                raise SystemExit(f"{name}: a short request was answered with {[status for status, _ in found]}")
            taken = [seconds for _, seconds in found]
            beside = statistics.median(taken)
            print(
                f"{name:<20} {1e3 * alone:>9.1f} {1e3 * beside:>10.1f} {1e3 * max(taken):>9.1f} {beside / alone:>6.1f} "
                f"{left:>4} of {options.long}",
                flush=True,
            )
    finally:
        process.terminate()
    return process.wait(60)


if __name__ == "__main__":
    sys.exit(main())
