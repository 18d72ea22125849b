"""Many clients at once: each keeps its connection, asks about states of its own, and checks every byte of its answers.

    python benchmarks/serving_load.py MODEL.gguf [--clients 64] [--seconds 60] [--extra serve-flag ...]

The server and the clients are a process each. Printed are throughput, beside what the forward passes of these requests
alone would allow one process; latencies; how much memory the server had at the beginning and at the end; and whether
anything was wrong, which is also the exit code.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from time import perf_counter
from typing import cast

import numpy as np
from requests_of import DRONE

import skyinfer
from skyinfer.schema import parse_questions

_STATES = 16  # of each client, all its own


class Talk(asyncio.Protocol):
    """One client: the next request goes out when the answer to the last one is in."""

    def __init__(self, exchanges: list[tuple[bytes, bytes]], end: float) -> None:
        self.exchanges, self.end = exchanges, end
        self.taken: list[float] = []
        self.wrong: list[bytes] = []
        self.done = asyncio.get_running_loop().create_future()
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self.start = perf_counter()
        self.transport.write(self.exchanges[len(self.taken) % len(self.exchanges)][0])

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        expected = self.exchanges[len(self.taken) % len(self.exchanges)][1]
        if not found or (head.startswith(b"HTTP/1.1 200") and len(body) < len(expected)):
            return
        if body != expected:
            self.wrong.append(self.data)
        self.data = b""
        self.taken.append(perf_counter() - self.start)
        if time.monotonic() < self.end and not self.wrong:
            self._send()
        else:
            self.done.set_result(None)
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.wrong.append(b"the connection was lost")
            self.done.set_result(None)


def exchanges(model: skyinfer.Model, client: int) -> tuple[list[tuple[bytes, bytes]], list[str]]:
    """(request, body of its answer) of each state of a client."""
    import msgspec

    states = [f"vy {client} dx {36 + i} up {client * i} dn 7 nxt {10 - i} alt {client + 32}" for i in range(_STATES)]
    pairs = []
    for state in states:
        body = json.dumps({**DRONE, "state": state}).encode()
        head = b"POST /v1/systemone HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        pairs.append((head + body, msgspec.json.encode(model.decide(state, DRONE["questions"]))))
    return pairs, states


def memory_of(pid: int) -> float:
    """Megabytes of physical memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def forward_limit(model: skyinfer.Model, states: list[str]) -> float:
    """Requests a second whose forward passes alone fill the time of one process."""
    prepared = model.engine.prepare(parse_questions(DRONE["questions"]))
    read = [prepared.ask(prepared.read(state)) for state in states]
    taken = []
    for _ in range(max(3, 300 // len(read))):
        for ask in read:
            start = perf_counter()
            model.engine.run([ask])
            taken.append(perf_counter() - start)
    return float(1 / np.median(taken))


async def load(port: int, talks: list[list[tuple[bytes, bytes]]], seconds: float) -> list[Talk]:
    end = time.monotonic() + seconds
    loop = asyncio.get_running_loop()
    protocols = []
    for pairs in talks:
        _, protocol = await loop.create_connection(lambda pairs=pairs: Talk(pairs, end), "127.0.0.1", port)
        protocols.append(protocol)
    await asyncio.wait_for(asyncio.gather(*(protocol.done for protocol in protocols)), seconds + 60)
    return protocols


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--extra", nargs=argparse.REMAINDER, default=[], help="further flags of skyinfer serve")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    model = skyinfer.load(options.model)
    made = [exchanges(model, client) for client in range(options.clients)]
    limit = forward_limit(model, [states[0] for _, states in made])

    command = [sys.executable, "-m", "skyinfer", "serve", "-m", str(options.model), "--port", "0", *options.extra]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert server.stderr is not None
    try:
        listening = None
        while listening is None:
            line = server.stderr.readline()
            if not line:
                raise SystemExit("the server did not start")
            if line.startswith(b"{"):
                listening = json.loads(line)
        port = int(listening["address"].rpartition(":")[2])
        # its log has to go somewhere
        drain = subprocess.Popen(["cat"], stdin=server.stderr, stdout=subprocess.DEVNULL)
        try:
            import uvloop as loops
        except ImportError:
            loops = asyncio  # type: ignore[assignment]
        loops.run(load(port, [pairs for pairs, _ in made], min(3.0, options.seconds)))
        before = memory_of(server.pid)
        start = perf_counter()
        protocols = loops.run(load(port, [pairs for pairs, _ in made], options.seconds))
        elapsed = perf_counter() - start
        after = memory_of(server.pid)
        server.terminate()
        code = server.wait(30)
        drain.wait(30)
    finally:
        server.kill()
    taken = np.concatenate([protocol.taken for protocol in protocols])
    wrong = [data for protocol in protocols for data in protocol.wrong]
    median, high, worst = 1000 * np.percentile(taken, [50, 99, 100])
    throughput = len(taken) / elapsed
    print(f"{options.clients} clients, {elapsed:.0f} s: {len(taken)} answers, {len(wrong)} wrong, exit code {code}")
    print(f"{throughput:.0f} a second, {throughput / limit:.2f} of {limit:.0f}, which the forward pass alone allows")
    print(f"latency {median:.2f} ms, p99 {high:.2f} ms, worst {worst:.1f} ms")
    print(f"memory {before:.1f} MB after 3 s, {after:.1f} MB at the end")
    for data in wrong[:3]:
        print(data[:300])
    return bool(wrong or code)


if __name__ == "__main__":
    sys.exit(main())
