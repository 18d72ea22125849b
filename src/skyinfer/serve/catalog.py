"""The models of a server, by name. A name in a request is only ever compared with names, never used as a path."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import SkyinferError
from ..model import Model, load
from ..runtime.precision import EXACT
from .refusals import Refusal

# The model name that TypeSafe's clients send unless their user sets another.
ALIAS = "jev-latest"
# Names that public clients send unless their user sets another. Of TypeSafe's: jev-latest, jev-preview, jev-1.13.0; by
# way of OpenRouter and Vercel ~typesafe/jev-latest, typesafe/jev-1.13, typesafe-ai/jev. Of Laya's: laya,
# laya-multilingual, convaiinnovations/laya, and the checkpoints and aliases of `laya.router` 0.4.15.
_CLIENTS_NAME = re.compile(r"(?:~?[a-z][a-z0-9-]*/)?(?:jev|laya)(?:[-_.:@][a-z0-9_.:@/-]*)?", re.IGNORECASE)
_CLIENTS_NAMES = frozenset((
    "auto", "decisions", "default", "en", "english", "ml", "multi", "multilingual", "nimble-latest", "typed",
    "typed-decisions", "typed_decisions",
))  # fmt: skip


class ServedModel(NamedTuple):
    """A model and the name that requests know it by."""

    name: str
    model: Model
    load_seconds: float

    @property
    def n_parameters(self) -> int:
        shapes = self.model.config.expected_tensors().values()
        return sum(_product(shape) for shape in shapes)


class Catalog:
    """The models in the order given; the first one answers requests that name no model."""

    def __init__(self, served: Sequence[ServedModel], strict: bool = False) -> None:
        """`strict`: only the models' own names are known, and no name that clients send by default."""
        self.served = list(served)
        self._strict = strict
        self._by_name = {one.name: one for one in served}

    @classmethod
    def load(
        cls,
        arguments: Sequence[str],
        *,
        threads: int | None,
        temperature_clamp: bool,
        strict: bool = False,
        precision: str = EXACT,
    ) -> Catalog:
        """Open the models of `-m [NAME=]PATH`, or s1-pico, which comes with skyinfer.

        Raises:
            SkyinferError, OSError: one cannot be opened, or two have the same name.
        """
        # Requests are tokenized in threads already, and another pool would run long texts before short ones.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        found: dict[str, ServedModel] = {}
        given: list[tuple[str, str, str | None]] = [(argument, *_named(argument)) for argument in arguments]
        for argument, name, path in given or [("s1-pico", "", None)]:
            start = time.perf_counter()
            model = load(path, threads=threads, temperature_clamp=temperature_clamp, grow=True, precision=precision)
            one = ServedModel(name or model.name, model, time.perf_counter() - start)
            if one.name in found:
                raise SkyinferError(
                    f"{argument}: another model is called {one.name!r} already; give this one a name with -m NAME=MODEL"
                )
            found[one.name] = one
        return cls(list(found.values()), strict)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self.served)

    def find(self, name: Any) -> ServedModel:
        """The model of a request's `model`.

        Raises:
            Refusal: 404 with the known names; 422 where the name is not a string.
        """
        if name is None:
            return self._default
        if not isinstance(name, str):
            raise Refusal(422, "string_type", "must be a string: the name of a model", loc=("model",))
        found = self._by_name.get(name)
        if found is not None:
            return found
        if self._means_default(name):
            return self._default
        names = ", ".join(self._by_name)
        raise Refusal(404, "not_found_error", f"there is no model of that name; there are {names}")

    @property
    def _default(self) -> ServedModel:
        return self._by_name.get(ALIAS, self.served[0])

    def _means_default(self, name: str) -> bool:
        """Whether a client sends this name where its user chose no model of this server."""
        if self._strict:
            return False
        if name == ALIAS:
            return True
        # where there is a choice of models, any other name may mean one that is missing
        return len(self.served) == 1 and (
            name.lower() in _CLIENTS_NAMES or (len(name) < 200 and _CLIENTS_NAME.fullmatch(name) is not None)
        )

    def listing(self) -> dict[str, Any]:
        """The body of GET /v1/models: `models` as TypeSafe's SDK reads it, `data` as llama.cpp's clients do."""
        entries, data = [], []
        for one in self.served:
            config = one.model.config
            changed = _changed(one.model.path)
            aliases = [ALIAS] if one is self._default and one.name != ALIAS and not self._strict else []
            entries.append(
                {
                    "name": one.name,
                    "model": one.name,
                    "description": f"System One decision model, {one.n_parameters:,} parameters, served by skyinfer",
                    "release_date": time.strftime("%Y-%m-%d", time.gmtime(changed)),
                    "type": "model",
                    "aliases": aliases,
                    "capabilities": ["decision"],
                    "x_precision": one.model.precision,
                }
            )
            data.append(
                {
                    "id": one.name,
                    "object": "model",
                    "created": int(changed),
                    "owned_by": "skyinfer",
                    "aliases": aliases,
                    "meta": {
                        "n_vocab": config.vocab_size,
                        "n_ctx": config.max_tokens,
                        "n_ctx_train": config.context_tokens,
                        "n_embd": config.d_model,
                        "n_params": one.n_parameters,
                        "x_precision": one.model.precision,
                    },
                }
            )
        return {"object": "list", "models": entries, "data": data}


def _named(argument: str) -> tuple[str, str]:
    """(name or "", path) of [NAME=]PATH; where the whole argument is an existing path it has no name."""
    name, equals, path = argument.partition("=")
    if not equals or os.path.exists(argument):
        return "", argument
    if not name.strip() or not path:
        raise SkyinferError(f"{argument}: expected -m MODEL or -m NAME=MODEL")
    return name, path


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return time.time()


def _product(shape: Sequence[int]) -> int:
    n = 1
    for size in shape:
        n *= size
    return n
