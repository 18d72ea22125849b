"""Runs what docs/serving.md shows, without docker and root: paths that it writes to are below a directory instead.

    python tests/documented_serving.py DIRECTORY

Needs package indexes, a C compiler and port 8080; takes a few minutes. The wheel is built once: commands that install
'.[serve]' install it. Run by .ci/run; test_serve_docs.py checks the same text without building.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "serving.md").read_text("utf-8")
ADDRESS = "http://127.0.0.1:8080"


def section(name: str) -> str:
    """The text under a heading, up to the next one, without fenced blocks."""
    plain = re.sub(r"^```.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    return re.split(r"^#+ ", plain.partition(f"# {name}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def commands(name: str) -> list[str]:
    """The indented commands of a section, each with its continuation lines."""
    blocks = re.findall(r"(?:^    .*\n)+", section(name), re.MULTILINE)
    lines = [line[4:] for block in blocks for line in block.splitlines()]
    found: list[str] = []
    for line in lines:
        if found and (found[-1].count("'") % 2 or found[-1].endswith("\\")):
            found[-1] += f"\n{line}"
        else:
            found.append(line)
    return found


def block(language: str) -> str:
    """The only block of a language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return str(found)


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments."""
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in block("dockerfile").splitlines() if line]


# ------------------------------------------------------------------------------------------ running them


def shell(command: str, cwd: Path, **environment: str) -> None:
    print("$", command, flush=True)
    subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=cwd, check=True, env={**os.environ, **environment})


@contextlib.contextmanager
def server(command: list[str], cwd: Path, **environment: str) -> Iterator[None]:
    print("$", shlex.join(command), flush=True)
    process = subprocess.Popen(command, cwd=cwd, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{ADDRESS}/health", timeout=2):
                break
            assert process.poll() is None, process.returncode
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        assert process.wait(60) == 0


def post(key: str | None = None) -> Any:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    body = (ROOT / "examples" / "request.json").read_bytes()
    with urllib.request.urlopen(urllib.request.Request(f"{ADDRESS}/v1/systemone", body, headers), timeout=10) as answer:
        return json.load(answer)


def main(work: Path) -> None:
    wheels = work / "wheels"
    install, serve, curl, *_ = commands("Serving")
    build, pip_install, *_ = re.findall(r"`(pip (?:wheel|install) .*?)`", section("Serving"))
    shell(f"{sys.executable} -m {build.replace('--wheel-dir dist', f'--wheel-dir {wheels}')}", ROOT)
    (wheel,) = wheels.glob("skyinfer-*.whl")

    assert "'.[serve]'" in install
    shell(install.replace(".venv", f"{work}/first").replace("'.[serve]'", f"'{wheel}[serve]'"), ROOT)
    with server(shlex.split(serve.replace(".venv", f"{work}/first")), work):
        answer = json.loads(subprocess.run(["bash", "-c", curl], capture_output=True, check=True).stdout)
        assert answer["model"] == "s1-pico", answer
        assert set(answer["answers"]) == {"action", "danger"}, answer

    shell(f"{sys.executable} -m venv {work}/second", work)
    shell(f"{work}/second/bin/{pip_install.replace('dist/', f'{wheels}/')}", work)
    shell(f"{work}/second/bin/skyinfer serve --help >/dev/null", work)

    as_service(work, wheel)
    in_a_container(work)
    print("docs/serving.md: everything that it shows runs")


def as_service(work: Path, wheel: Path) -> None:
    def moved(text: str) -> str:
        return text.replace("/opt/skyinfer", f"{work}/opt").replace("/etc/skyinfer", f"{work}/skyinfer")

    for command in commands("As a service"):
        if "systemctl" not in command:
            shell(moved(command.replace("sudo ", "")).replace("'.[serve]'", f"'{wheel}[serve]'"), ROOT)
    unit = moved(block("ini"))
    verify(unit, work)
    (key,) = re.findall("^SKYINFER_KEY=([0-9a-f]{48})$", (work / "skyinfer.env").read_text(), re.MULTILINE)
    assert (work / "skyinfer.env").stat().st_mode & 0o777 == 0o600
    (start,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    with server(shlex.split(start), work, SKYINFER_KEY=key):
        assert post(key)["model"] == "s1-pico"
        status = 0
        try:
            post("wrong")
        except urllib.error.HTTPError as refused:
            status = refused.code
            refused.close()
        assert status == 401, status


def verify(unit: str, directory: Path) -> None:
    """Let systemd check the unit, where it is installed.

    Raises:
        AssertionError: it complains.
    """
    if shutil.which("systemd-analyze") is None:
        return
    file = directory / "skyinfer.service"
    file.write_text(unit)
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 0 and "skyinfer.service" not in found.stderr, found.stderr  # noqa: PT018


def in_a_container(work: Path) -> None:
    """Follows the Dockerfile: its files are copied below a directory, and pip is that of a venv."""
    root = work / "container"
    root.mkdir()
    shell(f"{sys.executable} -m venv {root}/python", work)
    entry: list[str] = []
    for name, arguments in instructions():
        if name == "COPY" and not arguments.startswith("--from"):
            *sources, target = arguments.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, Path(f"{root}{target}"), ignore=shutil.ignore_patterns("*.so"))
                else:
                    os.makedirs(f"{root}{target}", exist_ok=True)
                    shutil.copy(ROOT / source, f"{root}{target}")
        elif name == "RUN" and "pip" in arguments:
            moved = arguments.replace("/wheels", f"{root}/wheels").replace("/source", f"{root}/source")
            shell(moved.replace("pip ", f"{root}/python/bin/pip ", 1), work)
        elif name == "ENTRYPOINT":
            entry = json.loads(arguments)
    entry[0] = f"{root}/python/bin/{entry[0]}"
    health = json.loads(dict(instructions())["HEALTHCHECK"].removeprefix("CMD "))
    with server(entry, work):
        subprocess.run([f"{root}/python/bin/python", *health[1:]], check=True)
        assert post()["model"] == "s1-pico"


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
