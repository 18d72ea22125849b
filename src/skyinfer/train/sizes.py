"""The sizes that a model can be trained in: one table, and what training takes where it is not told otherwise.

pico and nano are the sizes that speed is compared on (benchmarks/README.md). Width is 64 for each attention head
everywhere, because llama.cpp gives the decision head the encoder's number of heads.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Shape of a model, and how it is trained by default.

    Attributes:
        d_model: width of a token's vector; a multiple of 64.
        n_layers: encoder blocks.
        d_ff: inner width of an encoder's feed-forward.
        n_decision_blocks: blocks of the decision head.
        vocab_size: tokens that the tokenizer may have, special ones included.
        max_len: longest sequence.
        head_max_len: tokens that question and options may take of it.
        lr: highest learning rate (optimizer.py has the rest).
    """

    d_model: int
    n_layers: int
    d_ff: int
    n_decision_blocks: int
    vocab_size: int
    max_len: int
    head_max_len: int
    lr: float

    @property
    def n_heads(self) -> int:
        return self.d_model // 64


SIZES: dict[str, Size] = {
    "pico": Size(64, 3, 128, 1, vocab_size=1024, max_len=256, head_max_len=96, lr=3e-3),
    "nano": Size(256, 6, 384, 2, vocab_size=4096, max_len=512, head_max_len=192, lr=7.5e-4),
    "micro": Size(384, 10, 576, 2, vocab_size=8192, max_len=512, head_max_len=192, lr=5e-4),
}
