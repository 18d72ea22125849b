"""What 8 bits cost in exactness, beside ONNX Runtime's int8 and llama.cpp's q8_0 on the same weights.

    benchmarks/peers/run precision [--sizes nano large] [--weights initial healthy] [--requests 1000] [--directory DIR]
    benchmarks/peers/run precision --flights 200

Requests are the drone's three questions about states of flights. For each runtime: the mean and the largest difference
of a probability from Laya's model in float32, and the share of answers whose most probable option is another.
llama.cpp's q8_0 is computed in torch: weights and activations in blocks of 32 with scales in half precision, sums in
float32. llama-server itself is asked, too, where there is one. DIR is a checkpoint directory, such as one that
`skyinfer train` writes.
What the others answered is kept beside the checkpoint: a run that was interrupted goes on there, and a further one
with --keep or --directory asks skyinfer alone.
--flights has s1-pico fly so many seeds for ten minutes each, in both precisions, and judges its answers.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import compare
import numpy as np
import torch
from agreement import flight
from checkpoints import SIZES, paint
from in_turn import Distributions
from laya.agent import Agent

import skyinfer
from skyinfer.games.flappy import FRAMES_PER_SECOND
from skyinfer.games.judging import N_STATES, flights, judge_states, model_pilots


def rounded_blocks(x: torch.Tensor) -> torch.Tensor:
    """x [.., k] as Q8_0 has it: blocks of 32 whole numbers up to 127, a scale in half precision for each."""
    k = x.shape[-1]
    blocks = torch.nn.functional.pad(x, (0, -k % 32)).unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    whole = torch.where(scale > 0, blocks / scale, 0).round()
    return (whole * scale.half().float()).flatten(-2)[..., :k]


@contextlib.contextmanager
def products_of_q8_0(agent: Agent, known: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Every product of a weight matrix and the embedding in Q8_0, as llama.cpp multiplies.

    `known` keeps the matrices by their address, each with itself, so that no other comes to lie there.
    """
    exact = torch.nn.functional.linear

    def in_blocks(w: torch.Tensor) -> torch.Tensor:
        if w.data_ptr() not in known or known[w.data_ptr()][0].shape != w.shape:
            known[w.data_ptr()] = w, rounded_blocks(w)
        return known[w.data_ptr()][1]

    def linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return exact(rounded_blocks(x), in_blocks(w), bias)

    embedding = agent.model.encoder.embeddings.tok_embeddings.weight
    before, fast = embedding.data, torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # which would not come by here
    torch.nn.functional.linear, embedding.data = linear, in_blocks(before)
    try:
        yield
    finally:
        torch.nn.functional.linear, embedding.data = exact, before
        torch.backends.mha.set_fastpath_enabled(fast)


class Errors:
    """Differences of one runtime's answers from the exact ones."""

    def __init__(self) -> None:
        self.differences: list[np.ndarray] = []
        self.changed: list[bool] = []

    def see(self, given: Distributions, exact: Distributions) -> None:
        for qid, expected in exact.items():
            self.differences.append(np.abs(given[qid] - expected))
            self.changed.append(bool(given[qid].argmax() != expected.argmax()))

    def __str__(self) -> str:
        every = np.concatenate(self.differences)
        return f"{every.mean():>10.2e} {every.max():>10.2e} {np.mean(self.changed):>8.2%}"


class Kept:
    """Answers to the requests in their order, in a file that a later run goes on with."""

    def __init__(self, path: Path) -> None:
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        self.answers: list[Distributions] = [
            {qid: np.array(values) for qid, values in json.loads(line).items()} for line in whole
        ]
        path.write_text("".join(whole))
        self.path = path

    def get(self, i: int, answer: Callable[[], Distributions]) -> Distributions:
        if i == len(self.answers):
            self.answers.append(answer())
            with self.path.open("a") as file:
                file.write(json.dumps({qid: values.tolist() for qid, values in self.answers[i].items()}) + "\n")
        return self.answers[i]


def runtimes(agent: Agent, checkpoint: Path, gguf: Path, first: compare.LayaBatch, stack: contextlib.ExitStack) -> Any:
    """(name, how it answers a request and its batch) of each."""
    found: list[tuple[str, Callable[[dict[str, Any], compare.LayaBatch], Distributions]]] = []
    supported = skyinfer.info()["isa"]["supported"]
    for isa in dict.fromkeys([supported[-1], *(name for name in ("avx2", "neon") if name in supported)]):
        model = skyinfer.load(gguf, isa=isa, precision="int8")

        def ours(request: dict[str, Any], _: compare.LayaBatch, model: skyinfer.Model = model) -> Distributions:
            return compare.distributions(model.decide(request["state"], request["questions"]))

        found.append((f"skyinfer int8, {isa}", ours))

    known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def q8_0(_: dict[str, Any], batch: compare.LayaBatch) -> Distributions:
        with products_of_q8_0(agent, known):
            return batch.exact()

    found.append(("q8_0 as llama.cpp multiplies", q8_0))
    session = compare.onnx_session(compare.onnx_int8_model(first, checkpoint), torch.get_num_threads())
    found.append(
        (
            "ONNX Runtime int8",
            lambda _, batch: batch.distributions(session.run(None, compare.onnx_feed(session, batch))[0]),
        )
    )
    if (binary := compare.find_llama_server()) is not None:
        small = checkpoint / "model-q8_0.gguf"
        if not small.exists():
            skyinfer.convert(checkpoint, small, outtype="q8_0")
        ask = stack.enter_context(compare.llama_asker(binary, small, torch.get_num_threads()))
        found.append(("llama-server q8_0", lambda request, _: compare.distributions(ask(request))))
    return found


def table(checkpoint: Path, label: str, n_requests: int) -> None:
    gguf = checkpoint / "model.gguf"
    if not gguf.exists():
        skyinfer.convert(checkpoint, gguf, outtype="f16")
    agent = Agent(str(checkpoint), device="cpu")
    asked = flight(n_requests)
    with contextlib.ExitStack() as stack:
        first = compare.LayaBatch.of(agent, asked[0]["state"])
        rows = runtimes(agent, checkpoint, gguf, first, stack)
        errors = {name: Errors() for name, _ in rows}
        kept = {
            name: Kept(checkpoint / f"answers, {name}.jsonl")
            for name in ("laya", *errors)
            if not name.startswith("skyinfer")
        }
        before = time.monotonic()
        for i, request in enumerate(asked):
            batch = compare.LayaBatch.of(agent, request["state"])
            exact = kept["laya"].get(i, batch.exact)
            for name, answer in rows:
                call = functools.partial(answer, request, batch)
                errors[name].see(kept[name].get(i, call) if name in kept else call(), exact)
            if time.monotonic() - before > 60:
                before = time.monotonic()
                print(f"{label}: {i + 1} of {n_requests} requests", file=sys.stderr, flush=True)
    print(f"\n{label}, {n_requests} requests\n{'':<32} {'mean':>10} {'largest':>10} {'changed':>8}")
    for name, found in errors.items():
        print(f"{name:<32} {found}", flush=True)


def fly(n: int) -> None:
    for precision in ("exact", "int8"):
        model = skyinfer.load(precision=precision)
        flown = flights(model_pilots(model), n, 600 * FRAMES_PER_SECOND, "hard")
        scores = judge_states(model, set(), N_STATES)
        survived = sum(one.survived for one in flown)
        print(f"s1-pico, {precision}: {survived} of {n} flights; {scores}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=["nano", "large"], choices=list(SIZES))
    parser.add_argument("--weights", nargs="+", default=["initial", "healthy"], choices=["initial", "healthy"])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--directory", type=Path, help="a checkpoint directory to compare on, in place of painted ones")
    parser.add_argument("--flights", type=int, help="fly s1-pico over so many seeds, in place of all else")
    parser.add_argument("--keep", type=Path, help="a folder to keep checkpoints and exports in")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.flights:
        return fly(options.flights)
    if options.directory:
        return table(options.directory, str(options.directory), options.requests)
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for size in options.sizes:
            for weights in options.weights:
                checkpoint = folder / f"{size}-{weights}"
                if not checkpoint.exists():
                    paint(checkpoint, **SIZES[size], dtype="F16", weights=weights, seed=1)
                table(checkpoint, f"{size}, {weights} weights", options.requests)


if __name__ == "__main__":
    main()
