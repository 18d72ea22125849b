"""`skyinfer web`: models in a browser on this machine, from a server of files; or those files for any static host."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import tempfile
from pathlib import Path

from ..files.paths import checked_path
from ..terminal import flush_stdout, printable, put_line
from .model_option import add_model_option, model_path
from .signals import termination_raised

SUMMARY = "Watch a model fly and ask it, in a browser: pages that run it there, offline."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_model_option(parser, runs=False)
    add("--port", type=int, metavar="N", help="of the server on 127.0.0.1 (default: one that is free)")
    add("--no-browser", action="store_true", help="print the address and open nothing")
    add("--export", metavar="DIR", help="write the pages and the models into DIR, for any static host, and end")
    add("--force", action="store_true", help="with --export: replace the files in DIR that it writes, and no other")


def run(arguments: argparse.Namespace) -> None:
    parser: argparse.ArgumentParser = arguments.parser
    if arguments.port is not None and not 0 <= arguments.port < 1 << 16:
        parser.error(f"argument --port: expected 0 to 65535, got {arguments.port}")
    for option, is_given in (("--port", arguments.port is not None), ("--no-browser", arguments.no_browser)):
        if is_given and arguments.export is not None:
            parser.error(f"{option} is of the server; leave it out with --export")
    if arguments.force and arguments.export is None:
        parser.error("--force goes with --export")
    from ..web.serving import PageServer, export

    with tempfile.TemporaryDirectory(prefix="skyinfer-web-") as scratch, termination_raised():
        models = _models(model_path(arguments), Path(scratch))
        if arguments.export is not None:
            directory = checked_path(arguments.export, "a directory")
            n_files = export(directory, models, force=arguments.force)
            put_line(f"wrote {n_files} files and {len(models)} models to {printable(str(directory))}")
            put_line(f"any static host serves them: python -m http.server -d {printable(shlex.quote(str(directory)))}")
            return
        with PageServer(models, arguments.port or 0) as server:
            put_line(f"{server.url} (Ctrl-C ends it)")
            flush_stdout()
            if not arguments.no_browser:
                import webbrowser

                webbrowser.open(server.url)
            with contextlib.suppress(KeyboardInterrupt):  # the way to end it
                server.serve_forever()


def _models(model: str | None, scratch: Path) -> list[tuple[str, Path]]:
    """Names and files of the models that the pages offer: the one asked for, and those that come with skyinfer.

    Raises:
        FormatError: the model is faulty.
        OSError: it cannot be read.
    """
    from ..files.conversion import convert
    from ..files.gguf import GGUFFile
    from ..files.places import SHIPPED, find, shipped

    offered = {name: shipped(name) for name in SHIPPED}
    if model is None:
        return list(offered.items())
    place = find(model)
    path = place.path
    if path.is_dir():  # a browser reads files
        path = convert(path, scratch / f"{place.name or path.resolve().name}.gguf", outtype="f32", name=place.name)
    with GGUFFile.open(path) as file:
        name = str(file.metadata.get("general.name") or path.stem)
    return [(name, path), *((other, file) for other, file in offered.items() if other != name)]
