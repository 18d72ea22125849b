"""`skyinfer serve` from its options to its end."""

from __future__ import annotations

import gc
import sys

from ..errors import SkyinferError
from .options import Options


def run(options: Options) -> None:
    """Serve until a signal ends it.

    Raises:
        SkyinferError: a model cannot be served, or the extra is not installed.
        OSError: a file cannot be read, or the address is not to be had.
    """
    try:
        from .app import Application
        from .catalog import Catalog
        from .listener import bind, make_server
    except ImportError as error:
        raise SkyinferError(
            f"serving needs more packages ({error}); install them with: pip install 'skyinfer[serve]'"
        ) from None
    with bind(options.host, options.port) as bound:
        catalog = Catalog.load(options.models, threads=options.threads, temperature_clamp=options.temperature_clamp)
        app = Application(catalog, options)
        # what is here now stays: collections need not look at it, which they would do in the middle of an answer
        gc.collect()
        gc.freeze()
        # threads that compute come back for the interpreter often, and the event loop should not keep it for 5 ms
        sys.setswitchinterval(0.0002)
        try:
            make_server(app, bound).run(sockets=[bound])
        finally:
            app.close()
            app.journal.event("stopped", message="stopped")
