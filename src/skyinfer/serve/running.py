"""`skyinfer serve`: loads the models, runs the server until a signal ends it, and closes everything."""

from __future__ import annotations

import gc
import sys

from ..errors import SkyinferError
from .binding import bind, bound_path
from .options import Options


def import_packages() -> None:
    """Import what serving needs: by itself, so that a caller can defer Ctrl-C meanwhile, which msgspec's decoders take
    badly while they are made.

    Raises:
        SkyinferError: the extra is not installed.
    """
    try:
        from . import app, catalog  # noqa: F401
        from .listener import make_server  # noqa: F401
    except ImportError as error:
        raise SkyinferError(
            f"serving needs more packages ({error}); install them with: pip install 'skyinfer[serve]'"
        ) from None


def run(options: Options) -> None:
    """Serve until a signal ends it.

    Raises:
        SkyinferError: a model cannot be served, or the extra is not installed.
        OSError: a file cannot be read, or the address cannot be bound.
    """
    import_packages()
    from .app import Application
    from .catalog import Catalog
    from .listener import make_server

    opened = bind(options.host, options.port) if options.uds is None else bound_path(options.uds, options.uds_mode)
    with opened as bound:
        catalog = Catalog.load(
            options.models,
            threads=options.threads,
            temperature_clamp=options.temperature_clamp,
            precision=options.precision,
            strict=options.strict_models,
        )
        app = Application(catalog, options)
        # what exists now stays: garbage collections need not visit it, which would delay answers
        gc.collect()
        gc.freeze()
        # the event loop and the threads that compute exchange the GIL often; Python's 5 ms would delay answers
        sys.setswitchinterval(0.0002)
        try:
            make_server(app, bound).run(sockets=[bound])
        finally:
            app.close()
            app.request_log.event("stopped", message="stopped")
            app.request_log.close()
