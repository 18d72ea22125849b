"""Where a forward pass spends its time: every product, norm and attention of it, beside the whole pass.

    python benchmarks/profile_forward.py MODEL... [--seconds 10] [--isa NAME] [--precision int8]

One thread, the drone request. Each round times the core's peak, the pass, the peak again, then a replay of the pass:
the same kernels at the same shapes in the same order, every layer with weights of its own, so that these come from
where they do in the pass; 8-bit weights have a scale for each row there, as from any file but one of Q8_0. What a call
through Python takes, tried on the smallest shapes, is taken off. Printed are medians over the rounds; shares are of the
same round's pass and peak, which is that of float32. FLOP are two for each multiply-add that is needed: none where a
table of token ids stands for the first product, for pairs outside the window, for rows that the last block leaves out,
and in norms and softmax. "The rest" is the pass less all parts: what else it does, and the replay's error.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from time import perf_counter

from kernel_runs import Kernels, Operation
from requests_of import DRONE, forward

import skyinfer
from skyinfer.core import kernels as core_kernels
from skyinfer.files.config import ModelConfig
from skyinfer.model import TOKEN_TABLE_BYTES


def operations(config: ModelConfig, tabulated: bool, kernels: Kernels, markers: list[int]) -> Iterator[Operation]:
    """Those of a pass in the order of csrc/forward.c. `tabulated`: the first product is a table of token ids.

    The scorer keeps 16 bits where all else has 8."""
    scorer = "f16" if kernels.weights == "int8" else kernels.weights
    d, d_ff, lengths, n, n_markers = config.d_model, config.d_ff, kernels.lengths, sum(kernels.lengths), sum(markers)
    for i, is_global in enumerate(config.layer_is_global):
        if i > 0 or not tabulated:
            yield kernels.norm(n, d)
            yield kernels.product("qkv", n, 3 * d, d)
        kind, window = ("attention, global", -1) if is_global else ("attention, local", config.window)
        yield from kernels.attention(kind, d, config.n_heads, lengths, window, rope=True)
        yield kernels.product("output", n, d, d, residual=True)
        yield kernels.norm(n, d)
        yield kernels.product("up, gated", n, 2 * d_ff, d, "geglu" if config.activation == "gelu" else "swiglu")
        yield kernels.product("down", n, d, d_ff, residual=True)
    yield kernels.norm(n, d)
    for i in range(config.n_decision_blocks):
        m, asking = (n_markers, markers) if i == config.n_decision_blocks - 1 else (n, lengths)
        yield kernels.norm(n, d)
        yield kernels.product("head products", n, 2 * d, d, bias=True)
        yield kernels.product("head products", m, d, d, bias=True)
        yield from kernels.attention("head attention", d, config.n_decision_heads, asking)
        yield kernels.product("head products", m, d, d, bias=True, residual=True)
        yield kernels.norm(m, d)
        yield kernels.product("head products", m, 4 * d, d, "relu", bias=True)
        yield kernels.product("head products", m, d, 4 * d, bias=True, residual=True)
    yield kernels.norm(n_markers, d)
    yield kernels.product("head products", n_markers, d, d, "gelu", bias=True, weights=scorer)
    yield kernels.product("head products", n_markers, 1, d, bias=True, weights=scorer)


def is_tabulated(config: ModelConfig, precision: str) -> bool:
    """Whether a table of token ids stands for the first product where nothing else is asked for."""
    return 12 * config.vocab_size * config.d_model <= TOKEN_TABLE_BYTES[precision]


def most_weights(model: skyinfer.Model) -> str:
    """The type that most of a model's parameters have in memory."""
    counts = model.engine.core.parameters
    return max(counts, key=counts.__getitem__)


def timed(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def profile(path: str, seconds: float, isa: str | None, precision: str) -> None:
    model = skyinfer.load(path, isa=isa, threads=1, precision=precision)
    plan, asks = forward(model)
    sequences = model.encode(DRONE["state"], DRONE["questions"]).values()
    config, lengths, markers = model.config, [len(one.ids) for one in sequences], [one.options for one in sequences]
    tabulated, weights = is_tabulated(config, precision), most_weights(model)
    steps = list(operations(config, tabulated, Kernels(model.isa, lengths, weights), markers))
    least = replace(config, d_model=2 * math.lcm(config.n_heads, config.n_decision_heads), d_ff=1)
    calls = list(operations(least, tabulated, Kernels(model.isa, [1] * len(lengths), weights), [1] * len(lengths)))
    n_calls, flops = Counter(step.kind for step in steps), Counter[str]()
    for step in steps:
        flops[step.kind] += step.flops
    flops["whole pass"] = flops.total()
    core = core_kernels.Kernels(model.isa)
    peak_rounds = flops["whole pass"] // (16 * core.tile[0] * core.tile[1]) + 1
    taken: dict[str, list[float]] = defaultdict(list)
    end = perf_counter() + seconds
    while perf_counter() < end or len(taken["peak"]) < 3:
        peak_time = timed(lambda: core.fma_peak(peak_rounds))
        taken["whole pass"].append(timed(lambda: plan.run(asks)))
        peak_time += timed(lambda: core.fma_peak(peak_rounds))
        taken["peak"].append(4 * peak_rounds * core.tile[0] * core.tile[1] / peak_time)
        spent: dict[str, float] = defaultdict(float)
        for step, call in zip(steps, calls, strict=True):
            call.run()  # brings Python's part back into the caches
            spent[step.kind] += timed(step.run) - timed(call.run)
        for kind, time in spent.items():
            taken[kind].append(time)
        taken["the rest"].append(taken["whole pass"][-1] - sum(spent.values()))
    print(f"\n{path}, {model.isa}, {weights} weights: {sum(lengths)} tokens, {sum(markers)} markers", end="")
    print(f", {len(taken['peak'])} rounds, peak {median(taken['peak']) / 1e9:.1f} GFLOP/s")
    print(f"{'':<18} {'calls':>6} {'us':>10} {'of pass':>8} {'GFLOP/s':>8} {'of peak':>8}")
    for kind in ["whole pass", *sorted(n_calls, key=lambda kind: -median(taken[kind])), "the rest"]:
        share = median(part / whole for part, whole in zip(taken[kind], taken["whole pass"], strict=True))
        line = f"{kind:<18} {n_calls[kind] or '':>6} {1e6 * median(taken[kind]):>10.1f} {share:>8.1%}"
        if flops[kind]:
            of_peak = median(flops[kind] / t / peak for t, peak in zip(taken[kind], taken["peak"], strict=True))
            line += f" {flops[kind] / median(taken[kind]) / 1e9:>8.1f} {of_peak:>8.1%}"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each model")
    parser.add_argument("--isa")
    parser.add_argument("--precision", choices=["exact", "int8"], default="exact")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # of temperatures that are clamped
    for path in options.models:
        profile(path, options.seconds, options.isa, options.precision)


if __name__ == "__main__":
    main()
