"""What docs/serving.md shows: its requests are answered, its commands are whole, its unit file satisfies systemd.

documented_serving.py runs the commands that build and install, which takes minutes and package indexes.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documented_serving import TEXT, block, commands, instructions, verify
from serving import ROOT, serving

from skyinfer.command.main import parser
from skyinfer.serve.options import _LIMIT_FLAGS, Limits, from_arguments


def test_the_first_request_and_the_client(capsys: pytest.CaptureFixture[str]) -> None:
    """With the model that the documented command serves: it flies the drone that they ask about."""
    (curl,) = [command for command in commands("Serving") if command.startswith("curl")]
    (body,) = re.findall(r"-d '(.*)'$", curl, re.DOTALL)
    with serving(()) as running, running.client() as client:
        answer = client.post(body.encode(), content_type="application/x-www-form-urlencoded")  # as curl -d sends it
        assert answer.json["model"] == "s1-pico"
        assert answer.json["answers"]["action"]["choice"] in ("thrust", "glide")
        assert 0 <= answer.json["answers"]["danger"]["noul"] <= 1
        python = block("python").replace("http://127.0.0.1:8080", running.address)
        exec(compile(python, "serving.md", "exec"), {})
        if shutil.which("curl"):
            shown = curl.replace("http://127.0.0.1:8080", running.address)
            printed = subprocess.run(["bash", "-c", shown], capture_output=True, check=True, timeout=20).stdout
            assert json.loads(printed) == answer.json
    assert re.fullmatch(r"(thrust|glide) [01]\.\d+\n", capsys.readouterr().out)


def test_the_first_request_asks_what_the_model_was_trained_for() -> None:
    (curl,) = [command for command in commands("Serving") if command.startswith("curl")]
    shown = json.loads(re.findall(r"-d '(.*)'$", curl, re.DOTALL)[0])
    example = json.loads((ROOT / "examples" / "request.json").read_text("utf-8"))
    assert shown["state"] == example["state"]
    assert shown["questions"].items() <= example["questions"].items()


def test_limits() -> None:
    shown = dict(re.findall(r"^\| `(--[a-z-]+)` \| (\d+)", TEXT, re.MULTILINE))
    assert len(shown) >= 8
    for flag, field, *_ in _LIMIT_FLAGS:
        assert f"`{flag}`" in TEXT
        if flag in shown:
            assert int(shown[flag]) == getattr(Limits(), field)


def test_nothing_is_installed_from_an_index_by_name() -> None:
    """The package is not on an index: it comes from the checkout, or from a wheel that was built of it."""
    for command in [*commands("Serving"), *commands("As a service"), *commands("In a container")]:
        assert "install 'skyinfer" not in command, command
        assert "install skyinfer" not in command, command
    for name, arguments in instructions():
        assert name != "RUN" or "skyinfer[serve]" not in arguments or "--no-index" in arguments


@pytest.mark.skipif(sys.platform == "win32", reason="commands of a POSIX shell")
def test_commands_are_whole() -> None:
    found = [*commands("Serving"), *commands("As a service"), *commands("In a container")]
    found += [arguments for name, arguments in instructions() if name == "RUN"]
    assert len(found) >= 12
    for command in found:
        checked = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, timeout=10)
        assert not checked.stderr, (command, checked.stderr)


def test_the_server_takes_the_flags_that_are_shown() -> None:
    """In commands, in the unit, in the container, and in the text."""
    (start,) = re.findall("^ExecStart=(.*)$", block("ini"), re.MULTILINE)
    entry = json.loads(dict(instructions())["ENTRYPOINT"])
    run = shlex.split(commands("In a container")[1])
    image = run.index("skyinfer")
    for command in (shlex.split(start), [*entry, *run[image + 1 :]]):
        arguments = parser().parse_args(command[command.index("serve") :])
        assert from_arguments(arguments, {"SKYINFER_KEY": "a-key"}).api_key == "a-key"
    known = subprocess.run([sys.executable, "-m", "skyinfer", "serve", "--help"], capture_output=True, text=True)
    flags = set(re.findall(r"`(--[a-z][a-z-]+)", TEXT))
    assert {flag for flag in flags if flag not in known.stdout} <= {"--unix-socket", "--truth"}


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "opt" / "bin" / "skyinfer"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = block("ini").replace("/opt/skyinfer", str(tmp_path / "opt"))
    verify(unit, tmp_path)
    if shutil.which("systemd-analyze"):
        with pytest.raises(AssertionError):
            verify(unit.replace("NoNewPrivileges", "NoNewPrivilege"), tmp_path)


def test_the_container_has_what_a_build_needs() -> None:
    """Every source exists, and together they are all that the build reads."""
    copied = [source for name, arguments in instructions() if name == "COPY" for source in arguments.split()[:-1]]
    sources = [source for source in copied if not source.startswith(("--", "/"))]
    assert all((ROOT / source).exists() for source in sources)
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "csrc", "src"} <= set(sources)


def test_the_health_check_of_the_container() -> None:
    command = json.loads(dict(instructions())["HEALTHCHECK"].removeprefix("CMD "))
    assert command[:2] == ["python", "-c"]
    with serving() as running:
        code = command[2].replace("http://127.0.0.1:8080", running.address)
        assert subprocess.run([sys.executable, "-c", code], timeout=20).returncode == 0
    assert subprocess.run([sys.executable, "-c", code], timeout=20, stderr=subprocess.DEVNULL).returncode != 0
