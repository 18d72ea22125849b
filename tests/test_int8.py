"""Models in 8-bit precision: against products in whole numbers, the same bits in any company, and near to exact."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import int8_reference
import numpy as np
import pytest
import reference
from agreement import flight
from checkpoints import SIZES, paint, read_safetensors, write_safetensors
from commands import Run
from cores import CONSTANTS

import skyinfer
from skyinfer.core import border
from skyinfer.files.gguf import GGUFFile
from skyinfer.games.flappy import FRAMES_PER_SECOND
from skyinfer.games.judging import flights, model_pilots

ISAS = [name for name in border.isa_names() if border.isa_supported(name)]
REQUEST: dict[str, Any] = {
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"sales": "a quote", "support": "a fault"}},
    "anger": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "annoyed", "furious"]},
    "harm": {"type": "noul", "instructions": "Is it harmful?"},
}
STATES = ["where is my parcel", {"a": [1, 2, {"b": None}]}, "", "word " * 70]


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden size, whose painted weights magnify every rounding, as a checkpoint and as f16.gguf and q8_0.gguf."""
    out = tmp_path_factory.mktemp("int8")
    paint(out / "checkpoint", **SIZES["golden"], dtype="F16", seed=3)
    for outtype in ("f16", "q8_0"):
        skyinfer.convert(out / "checkpoint", out / f"{outtype}.gguf", outtype=outtype)
    return out


def load(path: Path | str | None, **options: Any) -> skyinfer.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of painted temperatures
        return skyinfer.load(path, **options)


def test_every_product_is_that_of_the_reference(painted: Path, isa: str) -> None:
    """Of the activations that the model itself had before it: after a few products one at the edge between two whole
    numbers falls to the other side of what float64 finds, and painted weights magnify that."""
    model, w = (
        load(painted / "f16.gguf", precision="int8", isa=isa),
        reference.Reference.open(painted / "checkpoint").tensors,
    )
    for state in STATES[:2]:
        (sequence,) = model.encode(state, {"q": REQUEST["anger"]}).values()
        kept = {name: x.astype(np.float64) for name, x in model.activations(state, {"q": REQUEST["anger"]}).items()}
        markers = list(sequence.markers)

        def expect(name: str, x: np.ndarray, matrix: str, bias: str | None = None, added: Any = 0.0, kept=kept) -> None:
            y, sums = int8_reference.product_of_floats(x.astype(np.float32), w[matrix].astype(np.float32), isa)
            y = y + (0.0 if bias is None else w[bias]) + added
            if name.endswith(".ffn"):
                up, gate = np.split(y, 2, 1) if name.startswith("layer") else (y, 1.0)
                y = reference.gelu_erf(up) * gate if name.startswith("layer") else reference.relu(y)
                sums = np.abs(y) + 1.0
            assert np.abs(kept[name] - y).max() <= 2e-6 * max(1.0, float(sums.max())), name

        x = kept["embd_norm"]
        for i in range(4):
            layer, name = f"encoder.layers.{i}", f"layer.{i}"
            expect(f"{name}.attn_qkv", x if i == 0 else kept[f"{name}.attn_norm"], f"{layer}.attn.Wqkv.weight")
            expect(f"{name}.attn_output", kept[f"{name}.attn"], f"{layer}.attn.Wo.weight", added=x)
            expect(f"{name}.ffn", kept[f"{name}.ffn_norm"], f"{layer}.mlp.Wi.weight")
            x = kept[f"{name}.attn_output"]
            expect(f"{name}.ffn_output", kept[f"{name}.ffn"], f"{layer}.mlp.Wo.weight", added=x)
            x = kept[f"{name}.ffn_output"]
        x = kept["typed"]
        for j in range(2):
            block, name = f"head.layers.{j}", f"head.{j}"
            x = x[markers] if j == 1 else x  # in the last block only markers ask
            out = f"{block}.self_attn.out_proj"
            expect(f"{name}.attn_output", kept[f"{name}.attn"], f"{out}.weight", f"{out}.bias", x)
            expect(f"{name}.ffn", kept[f"{name}.ffn_norm"], f"{block}.linear1.weight", f"{block}.linear1.bias")
            x = kept[f"{name}.attn_output"]
            expect(f"{name}.ffn_output", kept[f"{name}.ffn"], f"{block}.linear2.weight", f"{block}.linear2.bias", x)
            x = kept[f"{name}.ffn_output"]
        scores = kept["cls.norm"] @ w["scorer.1.weight"].T + w["scorer.1.bias"]  # in float
        scores = reference.gelu_erf(scores) @ w["scorer.3.weight"].T + w["scorer.3.bias"]
        np.testing.assert_allclose(kept["logits"], scores, rtol=0, atol=1e-5)


def test_bits_are_the_same_alone_in_company_and_with_threads(painted: Path) -> None:
    for path in (painted / "f16.gguf", painted / "q8_0.gguf"):
        for isa in ISAS:
            model, many = (load(path, precision="int8", isa=isa, threads=n) for n in (1, 2))
            together = [model.logits(state, REQUEST) for state in STATES]
            for state, scores in zip(STATES, together, strict=True):
                for qid, question in REQUEST.items():
                    np.testing.assert_array_equal(model.logits(state, {qid: question})[qid], scores[qid])
            rows = many.compile(REQUEST).step_many(STATES[::-1])
            for state, row in zip(STATES[::-1], rows, strict=True):
                np.testing.assert_array_equal(row, model.compile(REQUEST).step(state))


def test_a_file_of_q8_0_loses_nothing_more(painted: Path) -> None:
    """Its blocks are used as they are, so 8-bit precision differs from exact by its activations alone."""
    exact, int8 = load(painted / "q8_0.gguf"), load(painted / "q8_0.gguf", precision="int8")
    for name in ("token_embd.weight", "blk.1.ffn_up.weight"):
        with GGUFFile.open(painted / "q8_0.gguf") as file:
            values, dtype = file.stored(name)
            assert dtype == "q8_0"
            assert values.base is not None  # the file's own bytes
    differences = [
        np.abs(exact.logits(state, REQUEST)[qid] - int8.logits(state, REQUEST)[qid]).max()
        for state in STATES
        for qid in REQUEST
    ]
    assert 0 < np.median(differences) < 0.2


def test_exact_reads_q8_0_as_the_gguf_package_does(painted: Path) -> None:
    from gguf import GGMLQuantizationType, quants

    with GGUFFile.open(painted / "q8_0.gguf") as file:
        raw = file.raw("blk.0.attn_output.weight").reshape(128, -1)
        np.testing.assert_array_equal(
            file.tensor("blk.0.attn_output.weight"), quants.dequantize(raw, GGMLQuantizationType.Q8_0)
        )


def test_s1_pico_flies_as_well(isa: str) -> None:
    """Four flights of a minute at normal; benchmarks/peers/precision.py flies 200 of ten minutes at hard."""
    model = load(None, precision="int8", isa=isa)
    flown = flights(model_pilots(model), 4, 60 * FRAMES_PER_SECOND, "normal")
    assert all(flight.survived for flight in flown)


def test_s1_pico_is_near_its_exact_answers() -> None:
    exact, int8 = load(None), load(None, precision="int8")
    worst = 0.0
    for request in flight(60):
        for qid, a in exact.logits(request["state"], request["questions"]).items():
            b = int8.logits(request["state"], request["questions"])[qid]
            p, q = (np.exp(z - z.max()) / np.exp(z - z.max()).sum() for z in (a, b))
            worst = max(worst, float(np.abs(p - q).max()))
    assert worst <= 0.02


@pytest.mark.parametrize("precision", border.PRECISIONS)
@pytest.mark.parametrize("d_model", [16, 48])
def test_rows_that_are_no_whole_blocks_cannot_be_q8_0(precision: str, d_model: int) -> None:
    """Neither of a new model, nor of a tensor that is set; such an embedding would be gathered from outside of it."""
    sizes = {"d_model": d_model, "d_ff": 32, "n_vocab": 5, "n_layers": 1, "n_decision_blocks": 1}
    rest = CONSTANTS | {"precision": precision}
    for name in ("token_embd.weight", "blk.0.attn_output.weight"):
        with pytest.raises(ValueError, match=f"{name}: rows of {d_model} are no blocks of Q8_0"):
            border.CoreModel(**sizes, **rest, dtypes={name: "q8_0"})
    core = border.CoreModel(**sizes, **rest)
    with pytest.raises(ValueError, match=r"expected .* got"):  # bytes of 32 numbers
        core.set("blk.0.attn_output.weight", np.zeros((d_model, 34), np.uint8), "q8_0")
    core.set("blk.0.ffn_down.weight", np.zeros((d_model, 34), np.uint8), "q8_0")


@pytest.mark.parametrize("precision", border.PRECISIONS)
@pytest.mark.parametrize("kept", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("given", ["f32", "f16", "q8_0"])
def test_a_matrix_is_set_in_the_type_that_it_is_kept_in(precision: str, kept: str, given: str) -> None:
    """Numbers become floats, or 8 bits by rows, from any type; what is kept as a file has it is of that type alone."""
    sizes = {"d_model": 64, "d_ff": 64, "n_vocab": 5, "n_layers": 1, "n_decision_blocks": 0}
    name = "blk.0.attn_output.weight"
    core = border.CoreModel(**sizes, **CONSTANTS, precision=precision, dtypes={name: kept})
    matrix = {
        "f32": np.ones((64, 64), np.float32),
        "f16": np.ones((64, 64), np.float16),
        "q8_0": np.zeros((64, 68), np.uint8),
    }[given]
    takes_any = kept == "f32" or (precision, kept) in (("int8", "f16"), ("exact", "q8_0"))
    if given == kept or takes_any:
        core.set(name, matrix, given)
    else:
        with pytest.raises(ValueError, match="not of the data type that the model was created for"):
            core.set(name, matrix, given)


def test_what_runs_is_said(painted: Path) -> None:
    model = load(painted / "f16.gguf", precision="int8")
    assert model.precision == "int8"
    assert ", int8, weights in " in repr(model)
    assert load(None).precision == "exact"
    assert ", exact, " in repr(load(None))


@pytest.mark.parametrize("wrong", ["int4", "INT8", "", None, 8])
def test_other_precisions_are_refused_by_name(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"precision: expected one of exact, int8, got "):
        skyinfer.load(precision=wrong)


def test_a_table_of_tokens_changes_no_bits(painted: Path) -> None:
    without, table = (load(painted / "f16.gguf", precision="int8", token_table_bytes=n) for n in (0, 1 << 24))
    assert table.engine.core.n_bytes > without.engine.core.n_bytes
    for state in STATES:
        a, b = (model.logits(state, REQUEST) for model in (without, table))
        for qid in REQUEST:
            np.testing.assert_array_equal(a[qid], b[qid])


def test_commands_take_the_precision(run: Run, tmp_path: Path) -> None:
    request = Path(__file__).parent.parent / "examples" / "request.json"
    asked = json.loads(request.read_text("utf-8"))
    for precision in border.PRECISIONS:
        answered = run("decide", "--precision", precision, request)
        assert (answered.code, answered.err) == (0, "")
        expected = load(None, precision=precision).decide(asked["state"], asked["questions"])
        assert json.loads(answered.out)["answers"] == json.loads(json.dumps(expected["answers"]))
    assert run("decide", request).out == run("decide", "--precision", "exact", request).out
    assert run("decide", request).out != run("decide", "--precision", "int8", request).out


@pytest.mark.parametrize("command", ["decide", "serve", "play", "rows", "evaluate", "calibrate", "distill"])
def test_commands_refuse_another_precision_by_name(run: Run, command: str) -> None:
    refused = run(command, "--precision", "int4")
    assert refused.code == 2
    assert "--precision: invalid choice: 'int4'" in refused.err
    assert "exact" in refused.err
    assert "int8" in refused.err


def test_a_server_says_which_precision_runs() -> None:
    from skyinfer.serve.catalog import Catalog

    for precision in border.PRECISIONS:
        listing = Catalog.load([], threads=1, temperature_clamp=True, precision=precision).listing()
        assert listing["models"][0]["x_precision"] == listing["data"][0]["meta"]["x_precision"] == precision


OUTLIERS = [3, 40, 77, 101]


def paint_outliers(folder: Path, where: str, weights: str) -> None:
    """Channels 100 times the others': in every norm ("norms"), the columns behind it as much smaller, so that the
    function is the same; in all that is added to the residual stream; or nowhere ("")."""
    paint(folder, **SIZES["golden"], dtype="F32", weights=weights, seed=4)
    path = next(folder.glob("*.safetensors"))
    tensors = read_safetensors(path)
    for i in range(SIZES["golden"]["n_layers"]):
        layer = f"encoder.layers.{i}"
        if where == "norms":
            for norm, matrix in (("attn_norm", "attn.Wqkv"), ("mlp_norm", "mlp.Wi")):
                if f"{layer}.{norm}.weight" in tensors:
                    tensors[f"{layer}.{norm}.weight"][OUTLIERS] *= 100
                    tensors[f"{layer}.{matrix}.weight"][:, OUTLIERS] /= 100
        elif where == "residual stream":
            for matrix in ("attn.Wo", "mlp.Wo"):
                tensors[f"{layer}.{matrix}.weight"][OUTLIERS] *= 100
    if where == "residual stream":
        tensors["encoder.embeddings.norm.weight"][OUTLIERS] *= 100
    write_safetensors(path, tensors)


@pytest.fixture(scope="module")
def with_outliers(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A model's file by where it has outlier channels, its weights and its outtype; made once each."""

    @functools.cache
    def make(where: str, weights: str, outtype: str) -> Path:
        folder = tmp_path_factory.mktemp("outliers")
        paint_outliers(folder / "model", where, weights)
        skyinfer.convert(folder / "model", folder / "model.gguf", outtype=outtype)
        return folder / "model.gguf"

    return make


def distances(path: Path, isa: str) -> np.ndarray:
    """How far each probability is from the exact one, over states of a flight."""
    exact, int8 = (load(path, precision=precision, isa=isa) for precision in border.PRECISIONS)
    asked = flight(12)
    p, q = (
        model.compile(asked[0]["questions"]).step_many([request["state"] for request in asked])
        for model in (exact, int8)
    )
    return np.abs(p - q)


@pytest.mark.parametrize("where", ["norms", "residual stream"])
@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_outlier_channels_stay_near(with_outliers: Callable[..., Path], where: str, outtype: str, isa: str) -> None:
    assert distances(with_outliers(where, "initial", outtype), isa).max() <= 0.005


@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_outlier_channels_cost_nothing(with_outliers: Callable[..., Path], outtype: str, isa: str) -> None:
    """With weights that magnify every rounding: 5e-3 to 1e-2 where activations have 8 bits. Where they have 16, and the
    weights' rounding is in the exact answers, too, 1e-4 becomes 2e-3: a row of activations has one scale there."""
    without = distances(with_outliers("", "healthy", outtype), isa).mean()
    assert distances(with_outliers("norms", "healthy", outtype), isa).mean() <= max(2 * without, 4e-3)
