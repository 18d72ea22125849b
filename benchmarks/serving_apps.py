"""Applications for serving.py to start: skyinfer's own for a server that is not its own, one that does nothing, and one
that decides what it knows beforehand, which tells what a server costs a process that has something to do.

granian --interface asginl --factory serving_apps:served        (the model is in SERVING_MODEL)
uvicorn serving_apps:bare
uvicorn --factory serving_apps:deciding
"""

from __future__ import annotations

import os
from typing import Any

# as long as the drone request's answer
_NOTHING = b"{" + b" " * 500 + b"}"
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_NOTHING)).encode())]


def served() -> Any:
    from skyinfer.serve.app import Application
    from skyinfer.serve.catalog import Catalog
    from skyinfer.serve.options import Options

    catalog = Catalog.load([os.environ["SERVING_MODEL"]], threads=None, temperature_clamp=False)
    return Application(catalog, Options())


def deciding() -> Any:
    from requests_of import DRONE

    import skyinfer

    model = skyinfer.load(os.environ["SERVING_MODEL"], temperature_clamp=False)
    state, questions = DRONE["state"], DRONE["questions"]

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        model.decide(state, questions)
        await bare(scope, receive, send)

    return application


async def bare(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise RuntimeError("this application speaks http")
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _NOTHING})
