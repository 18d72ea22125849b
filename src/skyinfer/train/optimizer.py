"""What turns gradients into updates: Muon for the matrices between activations, AdamW for everything else.

Muon (Jordan et al. 2024): the momentum of a matrix's gradients, made orthogonal by five Newton-Schulz steps, so that an
update moves all directions of the matrix alike. At pico's size it learns as much as AdamW does from half as many
examples. The three of a Wqkv, both halves of a Wi, and keys and values of a kv_proj are matrices of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_BETAS, _EPS = (0.9, 0.98), 1e-8
_MOMENTUM = 0.95
# of the quintic whose repetition takes every singular value near 1
_A, _B, _C = 3.4445, -4.7750, 2.0315
_STEPS = 5
# Muon's rate at width 64, in AdamW's; AdamW's best rate falls with the width and Muon's does not
_RATIO = 6.0

# matrices that are several, one below the other
_PARTS = {"Wqkv.weight": 3, "in_proj_weight": 3, "Wi.weight": 2, "kv_proj.weight": 2}


class Optimizer:
    """Updates weights in place. They must stay the same tensors."""

    def __init__(self, weights: Mapping[str, Tensor], d_model: int, weight_decay: float) -> None:
        """`weight_decay` is of matrices; it is multiplied by the rate of each."""
        self._names = list(weights)
        self._ratio, self._decay = _RATIO * d_model / 64, weight_decay
        # parts of weights by shape, each shape's updates being computed at once
        self._groups: dict[tuple[int, ...], list[tuple[int, int, Tensor]]] = {}
        rest: dict[bool, list[Tensor]] = {True: [], False: []}
        for number, (name, values) in enumerate(weights.items()):
            if _is_inner(name, values):
                for i, part in enumerate(values.detach().chunk(_n_parts(name))):
                    self._groups.setdefault(tuple(part.shape), []).append((number, i, part))
            else:
                rest[values.dim() > 1].append(values)
        self._momenta = {shape: torch.zeros(len(parts), *shape) for shape, parts in self._groups.items()}
        self._adam = torch.optim.AdamW(
            [{"params": rest[True], "weight_decay": weight_decay}, {"params": rest[False], "weight_decay": 0.0}],
            betas=_BETAS,
            eps=_EPS,
            fused=True,
        )
        self._weights = list(weights.values())

    @torch.no_grad()  # type: ignore[untyped-decorator, unused-ignore]
    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """One update. `gradients` come in the order of the weights; `rate` is AdamW's."""
        own = rate * self._ratio
        for shape, parts in self._groups.items():
            found = torch.stack([gradients[n].chunk(_n_parts(self._names[n]))[i] for n, i, _ in parts])
            momentum = self._momenta[shape].lerp_(found, 1.0 - _MOMENTUM)
            updates = orthogonal(found.lerp(momentum, _MOMENTUM))  # Nesterov's
            updates *= own * max(1.0, shape[0] / shape[1]) ** 0.5
            for (_, _, weights), update in zip(parts, updates, strict=True):
                weights.mul_(1.0 - own * self._decay).sub_(update)
        for weights, gradient in zip(self._weights, gradients, strict=True):
            weights.grad = gradient
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        for weights in self._weights:
            weights.grad = None

    def state(self) -> dict[str, Any]:
        """What a snapshot holds of it."""
        return {"momenta": list(self._momenta.values()), "adam": self._adam.state_dict()["state"]}

    def check(self, state: Mapping[str, Any]) -> None:
        """Make sure that `restore` can take `state`: it changes nothing.

        Raises:
            ValueError: it is of other weights. (Or KeyError or TypeError: it is no state.)
        """
        momenta, adam = state["momenta"], state["adam"]
        expected = [size for group in self._adam.param_groups for size in (values.shape for values in group["params"])]
        same = [values.shape for values in momenta] == [values.shape for values in self._momenta.values()]
        # before the first update there is none
        same = same and set(adam) in ({}.keys(), set(range(len(expected))))
        for number, own in adam.items():
            same = same and own["exp_avg"].shape == own["exp_avg_sq"].shape == expected[number]
            same = same and own["step"].numel() == 1
        tensors = [*momenta, *(values for own in adam.values() for values in own.values())]
        if not same or any(values.dtype != torch.float32 for values in tensors):
            raise ValueError("the optimizer's moments are those of other weights")

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, which has passed `check`."""
        for mine, kept in zip(self._momenta.values(), state["momenta"], strict=True):
            mine.copy_(kept)
        # rates and decay are this training's own
        self._adam.load_state_dict({"state": state["adam"], "param_groups": self._adam.state_dict()["param_groups"]})


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest matrix with singular values of 1 to each of [n, rows, columns], roughly: they come out between 0.7
    and 1.2, where they were not far below the largest."""
    wide = matrices.shape[1] <= matrices.shape[2]
    x: Tensor = matrices if wide else matrices.mT
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * (square @ square)) @ x
    return x if wide else x.transpose(1, 2)


def _is_inner(name: str, values: Tensor) -> bool:
    """Whether a weight is a matrix from activations to activations."""
    return values.dim() == 2 and ("layers." in name or name.startswith("scorer.1."))


def _n_parts(name: str) -> int:
    return next((n for suffix, n in _PARTS.items() if name.endswith(suffix)), 1)
