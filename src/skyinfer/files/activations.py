"""The activations of an encoder's feed-forward part: what transformers, GGUF files and skyinfer call them.

transformers 5.24 (ACT2FN in transformers/activations.py) has several names for one function; where theirs differ in the
last bits only, as the spellings of the tanh form of GELU do, they are one here. Not computed are `prelu` and `xielu`,
which have weights of their own, `laplace` and `sqrtsoftplus`.
"""

from __future__ import annotations

from typing import NamedTuple


class Activation(NamedTuple):
    """
    Attributes:
        name: the core's and skyinfer's.
        transformers: its names there.
        gguf: `modern-bert.hidden_activation`.
        in_llama_cpp: llama.cpp b11434 computes it for that value. It knows ReLU as "reglu", and takes a name that it
            does not know for GEGLU with the tanh form of GELU, which is also what it computes for "gelu".
    """

    name: str
    transformers: tuple[str, ...]
    gguf: str
    in_llama_cpp: bool = False


ACTIVATIONS = (
    Activation("gelu", ("gelu", "gelu_python"), "gelu", True),
    Activation("silu", ("silu", "swish"), "silu", True),
    Activation(
        "gelu_tanh",
        ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh", "gelu_accurate"),
        "gelu_pytorch_tanh",
        True,
    ),
    Activation("gelu_quick", ("quick_gelu",), "quick_gelu"),
    Activation("gelu_clipped", ("gelu_10",), "gelu_10"),
    Activation("relu", ("relu",), "reglu", True),
    Activation("relu_squared", ("relu2",), "relu2"),
    Activation("relu6", ("relu6",), "relu6"),
    Activation("relu_leaky", ("leaky_relu",), "leaky_relu"),
    Activation("tanh", ("tanh",), "tanh"),
    Activation("sigmoid", ("sigmoid",), "sigmoid"),
    Activation("linear", ("linear",), "linear"),
    Activation("hardswish", ("hardswish",), "hardswish"),
    Activation("mish", ("mish",), "mish"),
)

BY_NAME = {one.name: one for one in ACTIVATIONS}
BY_TRANSFORMERS = {name: one for one in ACTIVATIONS for name in one.transformers}
# llama.cpp's converter copies transformers' name
BY_GGUF = {
    **BY_TRANSFORMERS,
    **{one.gguf: one for one in ACTIVATIONS},
    "geglu": BY_NAME["gelu"],
    "swiglu": BY_NAME["silu"],
}
