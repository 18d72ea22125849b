"""s2 in torch: states and options are encoded apart, and the options of a question, a set, ask the state.

Each distinct option of a batch, with its question, is encoded once for all states, and each state once for all its
questions (set_batches.py). Formulas: csrc/README.md and tests/reference.py.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .network import Encoder, only


class OptionBatch(NamedTuple):
    """Options with their questions, padded to the longest.

    ids: int64 [n, length]. keys: bool [n, length], False at padding; None where nothing is padded. markers: int64 [n].
    kinds: int64 [n].
    """

    ids: Tensor
    keys: Tensor | None
    markers: Tensor
    kinds: Tensor


class StateBatch(NamedTuple):
    """States with what is asked about them. An option of a question about a state is a row.

    ids: int64 [n_states, length]. keys: bool [n_states, length], False at padding; None where nothing is padded.
    table_rows: int64 [n_rows], which option a row is, of all that were encoded. by_state: int64 [n_states, most], the
    rows of each state, 0 where it has fewer. place: int64 [n_rows], where by_state, flat, has a row. by_question: int64
    [n_questions, most options], the rows of each question, 0 where it has fewer. options: bool, likewise.
    question_place: int64 [n_rows], where by_question, flat, has a row.
    """

    ids: Tensor
    keys: Tensor | None
    table_rows: Tensor
    by_state: Tensor
    place: Tensor
    by_question: Tensor
    options: Tensor
    question_place: Tensor


class SetNetwork(Encoder):
    """s2: the state once, and options as a set."""

    def options(self, batch: OptionBatch) -> Tensor:
        """[n, d]: what an option, with its question and its type, is before it has seen a state."""
        x = self.encoded(batch.ids, batch.keys)
        n, length, d = x.shape
        at = batch.markers + torch.arange(0, n * length, length)
        return F.embedding(at, x.reshape(-1, d)) + self.weights["type_emb.weight"][batch.kinds]

    def logits(self, batch: StateBatch, table: Tensor) -> Tensor:
        """[n_questions, most options] scores before any temperature, -inf where there is no option.

        `table` [n, d]: what `options` gave for the options that `batch.table_rows` are of.
        """
        states = self.encoded(batch.ids, batch.keys)
        x = F.embedding(batch.table_rows, table)
        states_seen, options_seen = only(batch.keys), only(None if bool(batch.options.all()) else batch.options)
        for j in range(self.shape.n_decision_blocks):
            block = f"decision.layers.{j}"
            x = x + self._of_states(x, states, batch, states_seen, block)
            x = x + self._of_each_other(x, batch, options_seen, block)
            x = self.fed_forward(x, block)
        z = F.embedding(batch.by_question, self.scored(x)[:, None])[..., 0]
        return z.masked_fill(~batch.options, -math.inf)

    def _of_states(self, x: Tensor, states: Tensor, batch: StateBatch, mask: Tensor | None, block: str) -> Tensor:
        """What rows [n_rows, d] get from their states [n_states, length, d]."""
        kv = F.linear(self.normed(states, f"{block}.cross_kv_norm"), *self.affine(f"{block}.cross_attn.kv_proj"))
        k, v = self._heads(kv, 2)
        q = F.linear(self.normed(x, f"{block}.cross_norm"), *self.affine(f"{block}.cross_attn.q_proj"))
        (q,) = self._heads(F.embedding(batch.by_state, q), 1)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(-1, x.shape[1])
        return F.linear(F.embedding(batch.place, a), *self.affine(f"{block}.cross_attn.out_proj"))

    def _of_each_other(self, x: Tensor, batch: StateBatch, mask: Tensor | None, block: str) -> Tensor:
        """What rows [n_rows, d] get from the options of their own question."""
        qkv = F.linear(self.normed(x, f"{block}.norm1"), *self.affine(f"{block}.self_attn.in_proj", "_"))
        q, k, v = self._heads(F.embedding(batch.by_question, qkv), 3)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(-1, x.shape[1])
        return F.linear(F.embedding(batch.question_place, a), *self.affine(f"{block}.self_attn.out_proj"))

    def _heads(self, values: Tensor, n: int) -> tuple[Tensor, ...]:
        """[batch, length, n d] -> n of [batch, heads, length, d / heads]."""
        h = self.shape.n_decision_heads
        return values.view(*values.shape[:2], n, h, -1).permute(2, 0, 3, 1, 4).unbind(0)
