"""Shows what other runtimes say to an s2 model, and that none answers. Not in the suite.

    python tests/refusals.py laya                                   (needs laya 0.4.15 and torch 2.13.0)
    python tests/refusals.py llama.cpp --bin DIRECTORY              (llama-quantize and others of llama.cpp)

A painted checkpoint is tried as it is, and with the entry that Laya asks for first; its file of every type is given to
llama.cpp's programs (of which llama-tokenize does not always write down what it logs). Exit code 1 where something was
loaded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from checkpoints import SIZES, paint

import skyinfer
from skyinfer.files.outtypes import OUTTYPES


def of_laya(directory: Path) -> Iterator[tuple[str, str | None]]:
    """What was tried, and the message of the refusal; None where there was none."""
    import laya

    agent = json.loads((directory / "rl_agent_config.json").read_text("utf-8"))
    for name, changes in (("as it is", {}), ("with head_layers", {"head_layers": agent["decision_blocks"]})):
        (directory / "rl_agent_config.json").write_text(json.dumps(agent | changes), "utf-8")
        try:
            laya.load(str(directory))
        except Exception as error:
            yield f"laya, {name}", f"{type(error).__name__}: {error}"
        else:
            yield f"laya, {name}", None


def of_llama_cpp(directory: Path, programs: Path) -> Iterator[tuple[str, str | None]]:
    for outtype in OUTTYPES:
        file = skyinfer.convert(directory, directory / f"{outtype}.gguf", outtype=outtype)
        for program, arguments in (
            ("llama-quantize", [file, directory / "out.gguf", "Q8_0"]),
            ("llama-tokenize", ["-m", file, "-p", "hello"]),
            ("llama-server", ["-m", file, "--port", "0"]),
        ):
            command = [str(programs / program), *map(str, arguments)]
            found = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
            said = [line.strip() for line in (found.stdout + found.stderr).splitlines() if "unknown model arch" in line]
            is_refused = found.returncode != 0 and "hello" not in found.stdout and not (directory / "out.gguf").exists()
            yield f"{program}, {outtype}", (said or [f"exit code {found.returncode}"])[0] if is_refused else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtime", choices=["laya", "llama.cpp"])
    parser.add_argument("--bin", type=Path, help="where llama.cpp's programs are")
    options = parser.parse_args()
    if options.runtime == "llama.cpp" and options.bin is None:
        parser.error("llama.cpp needs --bin")
    with tempfile.TemporaryDirectory() as scratch:
        directory = paint(Path(scratch, "s2"), **SIZES["pico"], architecture="s2")
        tried = of_laya(directory) if options.runtime == "laya" else of_llama_cpp(directory, options.bin)
        good = True
        for name, message in tried:
            print(f"{name}: {message or 'NOT REFUSED'}")
            good = good and message is not None
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
