"""`skyinfer web`: the pages and models from a server of its own, or as files."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from checkpoints import SIZES, paint
from commands import Run

from skyinfer.files.places import SHIPPED, shipped
from skyinfer.web.serving import PageServer

pytestmark = pytest.mark.usefixtures("plain_environment")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[PageServer]:
    odd = tmp_path / "odd name #1?.gguf"
    odd.write_bytes(b"GGUF, says who")
    with PageServer([("s1-pico", shipped("s1-pico")), ("odd", odd)]) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_pages_load_nothing_from_elsewhere_and_all_is_there(served: PageServer) -> None:
    for page in ("/", "/ask.html"):
        response, body = ask(served, page)
        assert response.status == 200
        assert response.getheader("content-type") == "text/html; charset=utf-8"
        policy = response.getheader("content-security-policy") or ""
        assert "default-src 'none'" in policy
        assert "unsafe-inline" not in policy
        text = body.decode()
        assert not re.search(r"<script(?! type=\"module\" src=)|<style|\sstyle=|\son[a-z]+=", text)
        for link in re.findall(r'(?:src|href)="([^"]+)"', text):
            assert not urlsplit(link).netloc
            assert ask(served, "/" + link.removeprefix("./"))[0].status == 200, link
    for module in ("/skyinfer.wasm", "/skyinfer-relaxed.wasm"):
        response, body = ask(served, module)
        assert (response.getheader("content-type"), body[:4]) == ("application/wasm", b"\0asm")


def test_models_are_where_the_list_says(served: PageServer) -> None:
    listing = json.loads(ask(served, "/models.json")[1])
    assert [model["name"] for model in listing["models"]] == ["s1-pico", "odd"]
    assert not listing["server"]
    pico, odd = (ask(served, "/" + model["url"]) for model in listing["models"])
    assert pico[1] == shipped("s1-pico").read_bytes()
    assert odd[1] == b"GGUF, says who"
    response, body = ask(served, "/" + listing["models"][0]["url"], "HEAD")
    assert (response.getheader("content-length"), body) == (str(len(pico[1])), b"")


def test_a_model_that_is_gone_since_is_not_found(served: PageServer, tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "odd name #1?.gguf").unlink()
    odd = json.loads(ask(served, "/models.json")[1])["models"][1]
    assert ask(served, "/" + odd["url"])[0].status == 404
    assert capfd.readouterr().err == ""


def test_nothing_else_is_given_out_and_to_nobody_else(served: PageServer) -> None:
    absent = ["/pages.py", "/../pages.py", "/models/", "/models/0/", "/models/7/s1-pico.gguf", "//etc/passwd", "/%2e/x"]
    for path in absent:
        assert ask(served, path)[0].status == 404, path
    assert ask(served, "/", host="evil.example")[0].status == 403
    assert ask(served, "/", host=f"localhost:{served.server_address[1]}")[0].status == 200
    assert ask(served, "/", "POST")[0].status == 501


def test_the_command_prints_the_address_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "skyinfer", "web", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.match(r"(http://127\.0\.0\.1:(\d+)/) ", process.stdout.readline())
            assert found
            connection = http.client.HTTPConnection("127.0.0.1", int(found[2]), timeout=10)
            connection.request("GET", "/models.json")
            models = json.loads(connection.getresponse().read())["models"]
            connection.close()
        finally:
            process.terminate()
        assert process.wait(10) == 128 + 15
    assert [model["name"] for model in models] == list(SHIPPED)


def test_export_and_a_checkpoint_directory(run: Run, tmp_path: Path) -> None:
    painted = paint(tmp_path / "painted", **SIZES["pico"])
    out = tmp_path / "site"
    result = run("web", "-m", painted, "--export", out)
    assert result.code == 0
    n_files = sum(path.is_file() for path in out.iterdir())
    assert result.out == (
        f"wrote {n_files} files and 3 models to {out}\nany static host serves them: python -m http.server -d {out}\n"
    )
    models = json.loads((out / "models.json").read_text("utf-8"))["models"]
    assert [model["name"] for model in models] == ["painted", *SHIPPED]
    assert all((out / model["url"]).read_bytes()[:4] == b"GGUF" for model in models)
    assert {path.name for path in out.iterdir()} >= {"index.html", "ask.html", "fly.js", "skyinfer.js", "skyinfer.wasm"}


def test_export_replaces_nothing_by_itself(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "site"
    out.mkdir()
    mine = out / "ask.html"
    mine.write_text("mine")
    assert run("web", "--export", out).fault() == f"{mine}: exists already; --force replaces it"
    assert [path.name for path in out.iterdir()] == ["ask.html"]
    mine.rename(out / "mine.txt")
    assert run("web", "--export", out).code == 0
    assert run("web", "--export", out).code == 1
    mine.write_text("changed")
    assert run("web", "--export", out, "--force").code == 0
    assert "changed" not in mine.read_text("utf-8")
    assert (out / "mine.txt").read_text() == "mine"
    own = out / "models" / "s1-pico.gguf"
    before = own.read_bytes()
    assert "is read by this command, too" in run("web", "-m", own, "--export", out, "--force").fault()
    assert own.read_bytes() == before
    assert run("web", "--force").code == 2


def test_faults(run: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    result = run("web", "-m", broken, "--no-browser")
    assert result.code == 1
    assert "truncated" in result.err
    assert run("web", "-m", tmp_path / "nowhere.gguf", "--no-browser").code == 1
    assert run("web", "--port", "70000").code == 2
    for option in (["--port", "99"], ["--port", "0"], ["--no-browser"]):
        result = run("web", "--export", tmp_path / "site", *option)
        assert result.code == 2
        assert f"{option[0]} is of the server" in result.err
    assert not (tmp_path / "site").exists()
    for force in ([], ["--force"]):
        assert run("web", "--export", broken, *force).fault() == f"{broken}: is a file; name a directory to write"
