"""Write the golden files from the real Laya runtime; the command is in README.md beside this file.

One instrumented call of the runtime per request: what it tokenized, what the network gave and what
it answered come from the same run. Needs laya, torch and transformers, which nothing else does.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from laya.agent import Agent
from laya.common import QTYPES, collate_items, temp_bucket, unpermute_probs

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import recipes  # noqa: E402
from inputs import ANSWERS, CROWD, TEXT, VARIANT_ANSWERS, Case  # noqa: E402
from recipes import RECIPES, VARIANTS, fingerprint, painted, sample_of, to_literal  # noqa: E402

PINNED = ("laya", "torch", "transformers", "tokenizers")
write = functools.partial(recipes.write, packages=PINNED)

LENGTHS, MARKER_COUNTS = (7, 65, 66, 129, 200), (1, 2, 9)


class Probe:
    """An agent whose last call's sequences (`items`) and raw scores (`logits`) can be read."""

    def __init__(self, directory: Path) -> None:
        self.agent = Agent(str(directory), device="cpu")
        self.items: list[dict[str, Any]] = []
        self.logits = np.zeros((0, 0), np.float32)
        encode, forward = self.agent._encode_state, self.agent._forward

        def encode_and_keep(*args: Any, **options: Any) -> list[dict[str, Any]]:
            self.items = encode(*args, **options)
            return self.items

        def forward_and_keep(batch: Any) -> Any:
            self.logits, act = forward(batch)
            return self.logits, act

        self.agent._encode_state, self.agent._forward = encode_and_keep, forward_and_keep

    def run(self, items: list[dict[str, Any]]) -> np.ndarray:
        """Raw scores of a padded batch of ready sequences, float32 [n, most markers]."""
        with torch.no_grad():
            return self.agent._forward(collate_items([items], self.agent.tok.pad_token_id))[0]


def exact(values: Any) -> list[float]:
    """float32 values with the fewest digits that give them back."""
    return [float(str(v)) for v in np.asarray(values, np.float32).ravel()]


def text_cases(
    probes: dict[str, Probe],
    inputs_by_suffix: dict[str, list[Case]] = TEXT,
    kinds: tuple[str, ...] = ("byte", "metaspace"),
) -> list[dict[str, Any]]:
    """Each input with each tokenizer: ids, markers and cuts by question, or the refusal."""
    cases = []
    for suffix, inputs in inputs_by_suffix.items():
        for name, state, questions in inputs:
            request = to_literal({"state": state, "questions": questions})
            for kind in kinds:
                probe = probes[kind + suffix]
                probe.items = []
                case = {"name": name, "checkpoint": kind + suffix, "request": request}
                try:
                    probe.agent.predict(state, questions)
                except Exception as error:  # every refusal is data here
                    case["refused"] = {"error": type(error).__name__, "message": str(error)}
                else:
                    case["sequences"] = [sequence(item) for item in probe.items]
                cases.append(case)
    return cases


def sequence(item: dict[str, Any]) -> dict[str, Any]:
    return {
        "ids": item["ids"],
        "markers": item["markers"],
        **item["options"],
        **{key: item["state_stats"][key] for key in ("state_tokens", "state_tokens_used")},
    }


def answer_cases(probes: dict[str, Probe], answers: list[tuple[str, str, Any, Any]] = ANSWERS) -> list[dict[str, Any]]:
    """Whole requests: the runtime's own envelope, and its probabilities before it rounds them."""
    cases = []
    for name, checkpoint, state, questions in answers:
        probe = probes[checkpoint]
        probe.items = []
        envelope = probe.agent.predict(state, questions)
        details = []
        for row, (item, question) in enumerate(zip(probe.items, questions.values(), strict=True)):
            n = len(item["markers"])
            temperature = probe.agent.temperature_by_options.get(
                temp_bucket(item["qtype"], n), probe.agent.temperature[item["qtype"]]
            )
            z = probe.logits[row, :n] / temperature
            p = np.exp(z - z.max())
            order = question.get("option_order")
            details.append(
                {
                    "logits": exact(unpermute_probs(probe.logits[row, :n], order)),
                    "temperature": temperature,
                    "probabilities": exact(unpermute_probs(p / p.sum(), order)),
                }
            )
        request = to_literal({"state": state, "questions": questions})
        cases.append(
            {
                "name": name,
                "checkpoint": checkpoint,
                "request": request,
                "envelope": to_literal(envelope),
                "details": details,
            }
        )
    return cases


def forward_cases(checkpoint: str, probe: Probe) -> dict[str, Any]:
    """Scores of sequences around the window's edges, alone and in batches, and activations."""
    vocab, mask = len(probe.agent.tok), probe.agent.tok.mask_token_id
    rng = np.random.Generator(np.random.PCG64(20))
    cases, items = [], []
    for n in LENGTHS:
        for n_markers in MARKER_COUNTS:
            markers = sorted(rng.choice(n, min(n_markers, n), replace=False).tolist())
            ids = rng.integers(0, vocab, n).tolist()
            for marker in markers:
                ids[marker] = mask
            for kind in QTYPES:
                item = {"ids": ids, "markers": markers, "qtype": QTYPES[kind]}
                items.append(item)
                logits = exact(probe.run([item])[0, : len(markers)])
                cases.append({"ids": ids, "markers": markers, "type": kind, "logits": logits})
    batches = []
    for indices in ([0, 44, 10, 23], [44, 43, 42], rng.permutation(len(items))[:12].tolist()):
        batch = probe.run([items[i] for i in indices])
        rows = [exact(row[: len(items[i]["markers"])]) for row, i in zip(batch, indices, strict=True)]
        batches.append({"cases": indices, "logits": rows})
    shown = next(i for i, item in enumerate(items) if len(item["ids"]) == 129 and len(item["markers"]) == 9)
    return {
        "checkpoint": checkpoint,
        "cases": cases,
        "batches": batches,
        "activations": {"case": shown, "values": activations(probe, items[shown])},
    }


def activations(probe: Probe, item: dict[str, Any]) -> dict[str, Any]:
    """Root mean square and a sample of each activation, by the names of tests/reference.py."""
    model, found = probe.agent.model, {}

    def keep(name: str, *, entering: bool = False) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any = None) -> None:
            value = inputs[0] if entering else output
            found[name] = value[0] if isinstance(value, tuple) else value

        return hook

    def watch(module: Any, name: str, *, entering: bool = False) -> None:
        register = module.register_forward_pre_hook if entering else module.register_forward_hook
        handles.append(register(keep(name, entering=entering)))

    handles: list[Any] = []
    watch(model.encoder.embeddings, "embd_norm")
    for i, layer in enumerate(model.encoder.layers):
        if i > 0:
            watch(layer.attn_norm, f"layer.{i}.attn_norm")
        watch(layer.attn.Wqkv, f"layer.{i}.attn_qkv")
        watch(layer.attn.Wo, f"layer.{i}.attn", entering=True)
        watch(layer.mlp_norm, f"layer.{i}.attn_output", entering=True)
        watch(layer.mlp_norm, f"layer.{i}.ffn_norm")
        watch(layer.mlp.Wo, f"layer.{i}.ffn", entering=True)
        watch(layer, f"layer.{i}.ffn_output")
    watch(model.encoder.final_norm, "output_norm")
    watch(model.head.layers[0], "typed", entering=True)
    for j, block in enumerate(model.head.layers):
        watch(block.norm1, f"head.{j}.attn_norm")
        watch(block.self_attn.out_proj, f"head.{j}.attn", entering=True)
        watch(block.norm2, f"head.{j}.attn_output", entering=True)
        watch(block.norm2, f"head.{j}.ffn_norm")
        watch(block.linear2, f"head.{j}.ffn", entering=True)
        watch(block, f"head.{j}.ffn_output")
    watch(model.scorer[0], "cls.norm")
    probe.run([item])
    for handle in handles:
        handle.remove()

    values = {}
    for name, tensor in found.items():
        a = tensor.float().cpu().numpy()
        a = a.reshape(-1, a.shape[-1])
        rows, columns = sample_of(a.shape)
        values[name] = {
            "shape": list(a.shape),
            "rms": float(np.sqrt(np.square(a.astype(np.float64)).mean())),
            "sample": exact(a[np.ix_(rows, columns)]),
        }
    return values


def write_variants() -> None:
    """Scores of each variant on its requests, and tokens of those with other tokenizers."""
    probes = {name: Probe(painted(name)) for name in VARIANTS}
    answers = [
        (case, name, state, questions)
        for name in VARIANTS
        for kind, cases in VARIANT_ANSWERS.items()
        if name.startswith(kind)
        for case, state, questions in cases
        # more options than fit are refused, which text.json has
        if not (name == "parallel_tight" and questions is CROWD)
    ]
    tokenizers = [name for name in VARIANTS if name.startswith(("wordpiece", "bert"))]
    content = {
        "fingerprints": {name: fingerprint(name) for name in VARIANTS},
        # a refusal does not depend on the tokenizer, and text.json has them
        "texts": [case for case in text_cases(probes, {"": TEXT[""]}, tuple(tokenizers)) if "refused" not in case],
        "answers": answer_cases(probes, answers),
    }
    write("variants.json", content)


def main() -> None:
    warnings.simplefilter("ignore")  # the clamped temperatures are meant
    torch.set_num_threads(1)
    prints = {name: fingerprint(name) for name in RECIPES}
    probes = {name: Probe(painted(name)) for name in RECIPES}
    write_variants()
    write("text.json", {"fingerprints": prints, "cases": text_cases(probes)})
    write("answers.json", {"fingerprints": prints, "cases": answer_cases(probes)})
    forward = [forward_cases(name, probes[name]) for name in ("byte", "metaspace", "silu")]
    write("forward.json", {"fingerprints": prints, "checkpoints": forward})


if __name__ == "__main__":
    main()
