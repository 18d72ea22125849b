"""Where a model lies that a user names: a path that exists, a model that comes with the package, or one of the hub.

In this order, so that no file is ever passed over for something on the network. Only what a caller passed or a command
line says comes here; a name in a request is looked up among the models that a server has loaded (serve/catalog.py).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NamedTuple

from ..errors import FormatError
from . import hub
from .paths import checked_path

# name -> file in the package's directory models/ (docs/s1-pico.md, docs/s2-pico.md)
SHIPPED = {"s1-pico": "s1-pico.gguf", "s2-pico": "s2-pico.gguf"}
DEFAULT = "s1-pico"

_MODELS = Path(__file__).parents[1] / "models"


class Place(NamedTuple):
    """Where a model is.

    Attributes:
        path: a GGUF file or a checkpoint directory; it may be missing.
        name: what a checkpoint is called there; None where its directory is named after it.
    """

    path: Path
    name: str | None = None


def find(model: str | bytes | os.PathLike[str] | None = None, *, checkpoint: bool = False) -> Place:
    """The place of a model; one of the hub is downloaded into the hub's cache.

    Args:
        model: a path, a name in `SHIPPED`, or a string OWNER/NAME[@REVISION][:FILE or FOLDER] of the hub. None for
            the default model.
        checkpoint: what is wanted of the hub is a checkpoint directory.

    Raises:
        FormatError: no path at all, or an address where a name is wanted.
        FileNotFoundError: a plain name that is neither a file's nor a shipped model's.
        HubError: see `hub.fetch`.
    """
    if model is None:
        return Place(shipped(DEFAULT))
    if isinstance(model, bytes):
        model = os.fsdecode(model)  # as file systems give names, and as `os` takes them
    path = checked_path(model)
    # a link to nowhere is a path, too, and its reader says what is wrong with it
    if os.path.lexists(path) or not isinstance(model, str):
        return Place(path)
    if model in SHIPPED:
        return Place(shipped(model))
    repository = hub.parse(model)
    if repository is not None:
        return Place(hub.fetch(repository, checkpoint=checkpoint), hub.name_of(repository))
    if "://" in model:
        raise FormatError(f"{model}: is an address; write OWNER/NAME for a repository of the Hugging Face hub")
    if not path.suffix and len(path.parts) == 1:
        raise FileNotFoundError(
            errno.ENOENT,
            f"no such file or directory, and no model that comes with skyinfer ({' and '.join(SHIPPED)} do); "
            f"one of the Hugging Face hub is written OWNER/NAME",
            model,
        )
    return Place(path)


def shipped(name: str) -> Path:
    """The file of a model that comes with the package."""
    return _MODELS / SHIPPED[name]
