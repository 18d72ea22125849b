"""Models of the Hugging Face hub, fetched from a local server that speaks its protocol: what is downloaded, what is
refused and with which words, and that nothing but the caller's own argument ever makes a request."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from checkpoints import SIZES, paint
from hub_server import TOKEN, HubServer, repo
from huggingface_hub import constants

import skyinfer
from skyinfer.files import hub
from skyinfer.files.hub import Repository

QUESTIONS: dict[str, Any] = {"rain": {"type": "noul", "instructions": "Will it rain?"}}
DATA_FILES = [
    "encoder/config.json",
    "rl_agent_config.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
]
CALM: dict[str, Any] = {"temperature": [1.5, 1.25, 2.0], "temperature_by_options": {}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as it lies in a repository: among code, pickles, other formats and a card."""
    directory = paint(tmp_path_factory.mktemp("hub") / "laya", **SIZES["pico"], **CALM)
    for name in ("README.md", "modeling_laya.py", "pytorch_model.bin", "model.onnx", "extra.safetensors",
                 "encoder/x.pkl", "tokenizer/tokenization_laya.py", "training_args.bin"):  # fmt: skip
        (directory / name).write_bytes(b"never to be fetched" * 1000)
    return directory


@pytest.fixture(scope="module")
def gguf(checkpoint: Path) -> bytes:
    return skyinfer.convert(checkpoint, checkpoint.parent / "laya.gguf").read_bytes()


@pytest.fixture(scope="module")
def answer(checkpoint: Path) -> Any:
    return skyinfer.load(checkpoint).decide("grey", QUESTIONS)["answers"]


@pytest.fixture(scope="module")
def running() -> Iterator[HubServer]:
    with HubServer().running() as server:
        yield server


@pytest.fixture
def server(running: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """A hub without repositories, this process's only one, and an empty cache."""
    running.reset()
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "SKYINFER_MODEL"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
    monkeypatch.setenv("HF_HOME", str(home))
    # the library has read its variables already
    monkeypatch.setattr(constants, "ENDPOINT", running.endpoint)
    template = running.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return running


def answer_of(name: str) -> Any:
    return skyinfer.load(name).decide("grey", QUESTIONS)["answers"]


def refused(name: str) -> str:
    with pytest.raises(skyinfer.HubError) as caught:
        skyinfer.load(name)
    assert isinstance(caught.value, (skyinfer.SkyinferError, OSError))
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    assert "\n" not in message
    return message


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which reads the library's variables for itself."""
    return subprocess.run(
        [sys.executable, "-m", "skyinfer", *arguments],
        capture_output=True, text=True, timeout=120, env={**os.environ, **environment},
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", Repository("owner/name")),
        ("owner-1/na_me.v2", Repository("owner-1/na_me.v2")),
        ("owner/name@v1.0", Repository("owner/name", "v1.0")),
        ("owner/name@refs/pr/1", Repository("owner/name", "refs/pr/1")),
        ("owner/name:a b.gguf", Repository("owner/name", None, "a b.gguf")),
        ("owner/name:q8/a.gguf", Repository("owner/name", None, "q8/a.gguf")),
        ("owner/name:multilingual/", Repository("owner/name", None, "multilingual")),
        ("owner/name:.", Repository("owner/name", None, ".")),
        ("owner/name@main:a.gguf", Repository("owner/name", "main", "a.gguf")),
        ("owner/name:a.gguf@main", Repository("owner/name", "main", "a.gguf")),
        ("owner/name@main:a@b.gguf", Repository("owner/name", "main", "a@b.gguf")),
        *(
            (text, None)
            for text in (
                "name", "owner/", "/name", "./name", "../name", "~/name", "a/b/c", "owner/name/", "owner/name.gguf",
                "owner/model.safetensors", "owner/name@", "owner/name:", "owner/name@:x", "owner/name@main:",
                "owner/na--me", "owner/na..me", "owner/name\n", "öwner/name", "owner/name:a\nb", "C:/model",
                "https://huggingface.co/owner/name", "owner\\name", "", "owner/" + "n" * 96, "owner /name",
            )
        ),
    ],
)  # fmt: skip
def test_names(text: str, expected: Repository | None) -> None:
    assert hub.parse(text) == expected


def test_what_is_written_as_a_path_is_never_asked_for(server: HubServer, tmp_path: Path) -> None:
    for name in (
        "models/x.gguf",
        "./owner/name",
        "/owner/name",
        "a/b/c",
        "owner/name/",
        "owner/name@",
        Path("owner/name"),
    ):
        with pytest.raises(FileNotFoundError):
            skyinfer.load(name)
    with pytest.raises(skyinfer.FormatError, match="write OWNER/NAME"):
        skyinfer.load(f"{server.endpoint}/owner/name")
    assert server.asked == []


def test_a_path_that_exists_wins(server: HubServer, checkpoint: Path, gguf: bytes, tmp_path: Path) -> None:
    server.repos["sky/laya"] = repo(checkpoint)
    (tmp_path / "sky").mkdir()
    (tmp_path / "sky" / "laya").write_bytes(gguf)
    assert skyinfer.load("sky/laya").path == Path("sky/laya")
    (tmp_path / "sky" / "laya").unlink()
    (tmp_path / "sky" / "laya").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        skyinfer.load("sky/laya")
    assert server.asked == []


def test_shipped_models_have_names(server: HubServer, gguf: bytes, tmp_path: Path) -> None:
    assert skyinfer.load("s1-pico").path == skyinfer.load().path
    with pytest.raises(FileNotFoundError, match=r"s1-pico.*OWNER/NAME") as caught:
        skyinfer.load("s1-pikko")
    assert caught.value.filename == "s1-pikko"
    (tmp_path / "s1-pico").write_bytes(gguf)
    assert skyinfer.load("s1-pico").path == Path("s1-pico")
    assert server.asked == []


# --------------------------------------------------------------------------------- what is fetched


def test_a_checkpoint_is_fetched_without_code_or_pickles(server: HubServer, checkpoint: Path, answer: Any) -> None:
    server.repos["sky/laya"] = repo(checkpoint)
    model = skyinfer.load("sky/laya")
    assert model.name == "laya"
    assert model.decide("grey", QUESTIONS)["answers"] == answer
    assert server.fetched() == sorted([*DATA_FILES, "model.safetensors"])
    cached = [path for path in model.path.rglob("*") if path.is_file()]
    assert sorted(path.relative_to(model.path).as_posix() for path in cached) == server.fetched()
    agent = next(one.headers["user-agent"] for one in server.asked if one.path == "/api/models/sky/laya")
    assert agent.startswith(f"skyinfer/{skyinfer.__version__}")
    server.asked.clear()
    assert answer_of("sky/laya") == answer
    assert server.fetched() == []


def test_a_gguf_file_is_preferred(server: HubServer, checkpoint: Path, gguf: bytes, answer: Any) -> None:
    files = repo(checkpoint).files
    server.repos["sky/laya"] = repo({**files, "gguf/laya.gguf": gguf})
    assert skyinfer.load("sky/laya").path.name == "laya.gguf"
    assert server.fetched() == ["gguf/laya.gguf"]
    assert skyinfer.load("sky/laya:.").decide("grey", QUESTIONS)["answers"] == answer


def test_one_of_several_gguf_files_is_named(server: HubServer, gguf: bytes) -> None:
    files = {f"laya-{kind}.gguf": gguf for kind in ("f16", "f32", "q8_0")}
    server.repos["sky/laya"] = repo({**files, "README.md": b"#"})
    message = refused("sky/laya")
    assert "3 GGUF files" in message
    assert "sky/laya:laya-f16.gguf" in message
    assert all(name in message for name in files)
    assert "laya-f16.gguf" in refused("sky/laya:laya-q4_0.gguf")
    assert server.fetched() == []
    assert skyinfer.load("sky/laya:laya-q8_0.gguf").path.name == "laya-q8_0.gguf"
    assert server.fetched() == ["laya-q8_0.gguf"]
    assert skyinfer.load("sky/laya:F16").path.name == "laya-f16.gguf"
    assert "no such model" in refused("sky/laya:6")


def test_patterns_in_a_name_are_no_patterns(server: HubServer, gguf: bytes) -> None:
    server.repos["sky/laya"] = repo({"a[1]*.gguf": gguf, "a1.gguf": gguf, "a1x.gguf": gguf})
    skyinfer.load("sky/laya:a[1]*.gguf")
    assert server.fetched() == ["a[1]*.gguf"]


def test_a_folder_of_a_repository(server: HubServer, checkpoint: Path, answer: Any) -> None:
    files = repo(checkpoint).files
    other = {f"multilingual/{name}": data for name, data in files.items()}
    server.repos["sky/laya"] = repo({**files, **other})
    model = skyinfer.load("sky/laya:multilingual")
    assert model.name == "laya-multilingual"
    assert model.decide("grey", QUESTIONS)["answers"] == answer
    assert server.fetched() == sorted(f"multilingual/{name}" for name in [*DATA_FILES, "model.safetensors"])
    server.repos["sky/two"] = repo({**other, **{f"b/{name}": data for name, data in files.items()}})
    assert "b, multilingual" in refused("sky/two")
    assert "multilingual" in refused("sky/two:nowhere")


def test_shards_are_those_that_the_index_names(server: HubServer, tmp_path: Path) -> None:
    directory = paint(tmp_path / "sharded", **SIZES["pico"], **CALM, shards=3)
    files = repo(directory).files
    server.repos["sky/laya"] = repo({**files, "model-00009-of-00009.safetensors": b"not of the index"})
    expected = skyinfer.load(directory).decide("grey", QUESTIONS)["answers"]
    assert answer_of("sky/laya") == expected
    shards = [f"model-{i}-of-00003.safetensors" for i in ("00001", "00002", "00003")]
    assert server.fetched() == sorted([*DATA_FILES, "model.safetensors.index.json", *shards])
    del files[shards[1]]
    server.repos["sky/less"] = repo(files)
    assert shards[1] in refused("sky/less")


def test_a_revision(server: HubServer, checkpoint: Path, gguf: bytes) -> None:
    first = repo({"a.gguf": gguf})
    commit = first.revisions["main"]
    server.repos["sky/laya"] = first._replace(revisions={"main": commit, "v1": commit, "refs/pr/1": commit})
    for revision in ("v1", commit, "refs/pr/1"):
        assert skyinfer.load(f"sky/laya@{revision}").path.parent.name == commit
    assert skyinfer.load("sky/laya:a.gguf@v1").path == skyinfer.load("sky/laya@v1:a.gguf").path
    assert "'v2'" in refused("sky/laya@v2")
    # what main is now is taken, and the older commit stays in the cache
    second = repo(checkpoint)
    server.repos["sky/laya"] = second
    assert skyinfer.load("sky/laya").path.name == second.revisions["main"]


@pytest.mark.parametrize("name", ["../evil.gguf", "/evil.gguf", "a/../../evil.gguf", "a\\evil.gguf", "a//evil.gguf"])
def test_names_that_leave_the_repository_are_not_there(
    server: HubServer, gguf: bytes, name: str, tmp_path: Path
) -> None:
    server.repos["sky/laya"] = repo({name: gguf})
    assert "neither a GGUF file nor a Laya checkpoint" in refused("sky/laya")
    refused(f"sky/laya:{name}")
    assert server.fetched() == []


# ----------------------------------------------------------------------------- downloads that break


def test_a_broken_download_goes_on_where_it_broke(server: HubServer, gguf: bytes, monkeypatch: Any) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what is written at once, and so can be kept
    server.repos["sky/laya"] = repo({"a.gguf": gguf})
    server.broken["a.gguf"] = [7000, 12_345]
    assert skyinfer.load("sky/laya").path.read_bytes() == gguf
    ranges = [one.headers.get("range") for one in server.asked if one.method == "GET" and "/-/" in one.path]
    assert ranges == [None, "bytes=7000-", "bytes=19000-"]


# A process that is killed when the connection breaks, before it asks for the rest.
_KILLED = """
import os, signal, sys, time
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 1000
time.sleep = lambda _: os.kill(os.getpid(), signal.SIGKILL)
import skyinfer
skyinfer.load(sys.argv[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="no SIGKILL")
def test_after_a_process_was_killed_the_next_one_has_the_finished_files_and_whole_ones(
    server: HubServer, checkpoint: Path, answer: Any
) -> None:
    """The file that it was killed in begins anew (huggingface_hub 2.4) or goes on, and is the right one either way."""
    server.repos["sky/laya"] = repo(checkpoint)
    server.broken["model.safetensors"] = [7000] * 5
    killed = subprocess.run([sys.executable, "-c", _KILLED, "sky/laya"], capture_output=True, timeout=120)
    assert killed.returncode == -9
    assert sum(path.stat().st_size for path in Path("home").rglob("*.incomplete")) > 0
    (snapshot,) = Path("home").rglob("snapshots/*")
    finished = {path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()}
    server.broken.clear()
    server.asked.clear()
    assert command("pull", "sky/laya").returncode == 0
    assert answer_of("sky/laya") == answer
    again = {one.path.rpartition("/-/")[2] for one in server.asked if one.method == "GET" and "/-/" in one.path}
    assert "model.safetensors" in again
    assert again.isdisjoint(finished)


def test_finished_files_are_kept_after_a_failure(
    server: HubServer, checkpoint: Path, monkeypatch: Any, answer: Any
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    server.repos["sky/laya"] = repo(checkpoint)
    server.broken["model.safetensors"] = [0] * 100
    assert "finished files are kept" in refused("sky/laya")
    server.broken.clear()
    server.asked.clear()
    assert answer_of("sky/laya") == answer
    assert server.fetched() == ["model.safetensors"]


@pytest.mark.parametrize("file", ["model.safetensors", "rl_agent_config.json"])  # a large one, and one of Git's
def test_bytes_that_are_not_the_hubs_are_removed(file: str, server: HubServer, checkpoint: Path, answer: Any) -> None:
    """Damaged on the way, which the library does not notice; and later in the cache, which `pull` finds."""
    server.repos["sky/laya"] = repo(checkpoint)
    server.damaged.add(file)
    message = refused("sky/laya")
    assert f"{file} came damaged" in message
    assert "try again" in message
    server.damaged.clear()
    server.asked.clear()
    assert answer_of("sky/laya") == answer
    assert server.fetched() == [file]

    (snapshot,) = Path("home").rglob("snapshots/*")
    stored = (snapshot / file).resolve()
    stored.write_bytes(stored.read_bytes()[:-1] + b"\1")
    first, second = command("pull", "sky/laya"), command("pull", "sky/laya")
    assert (first.returncode, second.returncode) == (1, 0)
    assert f"{file} came damaged, or was damaged in the cache" in first.stderr
    assert answer_of("sky/laya") == answer


def test_what_does_not_fit_is_not_begun(server: HubServer, checkpoint: Path) -> None:
    server.repos["sky/laya"] = repo(checkpoint)
    server.extra_size = 1 << 60
    message = refused("sky/laya")
    assert "has room for" in message
    assert "HF_HUB_CACHE" in message
    assert server.fetched() == []


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "is full"), (errno.EACCES, "cannot be written"), (errno.EIO, "try again")]
)
def test_faults_of_the_disk(server: HubServer, checkpoint: Path, monkeypatch: Any, number: int, words: str) -> None:
    server.repos["sky/laya"] = repo(checkpoint)

    def fail(*_: Any, **__: Any) -> str:
        raise OSError(number, os.strerror(number), "blobs/0")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert words in refused("sky/laya")


# -------------------------------------------------------------------------------- without the hub


def test_offline_afterwards(server: HubServer, checkpoint: Path, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server.repos["sky/laya"] = repo(checkpoint)
    assert answer_of("sky/laya") == answer
    server.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answer_of("sky/laya") == answer
    assert server.asked == []
    # an interrupted download leaves a model that is not whole
    (skyinfer.load("sky/laya").path / "model.safetensors").unlink()
    assert "not whole" in refused("sky/laya")


def test_offline_by_the_environment(server: HubServer, checkpoint: Path) -> None:
    server.repos["sky/laya"] = repo(checkpoint)
    for name in ("sky/other", "sky/laya@v1"):
        run = command("inspect", name, HF_HUB_OFFLINE="1")
        assert (run.returncode, run.stdout) == (1, "")
        assert re.fullmatch(rf"skyinfer: {name}: not .* in the cache .*HF_HUB_OFFLINE.*\n", run.stderr)
    assert server.asked == []
    assert command("inspect", "sky/laya").returncode == 0
    server.asked.clear()
    run = command("inspect", "--json", "sky/laya", HF_HUB_OFFLINE="1")
    assert json.loads(run.stdout)["name"] == "laya"
    assert (run.stderr, server.asked) == ("", [])


def test_a_hub_that_does_not_answer(server: HubServer, checkpoint: Path, answer: Any, monkeypatch: Any) -> None:
    server.repos["sky/laya"] = repo(checkpoint)
    assert answer_of("sky/laya") == answer
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.warns(RuntimeWarning, match=r"sky/laya: the hub did not answer .* the cache is used"):
        assert answer_of("sky/laya") == answer
    message = refused("sky/other")
    assert "cannot be reached" in message
    assert "no such file here" in message


# --------------------------------------------------------------------------------- what is refused


def test_private_and_missing_repositories(
    server: HubServer, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    server.repos["sky/laya"] = repo(checkpoint, "private")
    for name in ("sky/laya", "sky/none"):
        message = refused(name)
        assert f"{server.endpoint}/{name}" in message
        assert "HF_TOKEN" in message
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert answer_of("sky/laya") == answer
    assert "no such repository" in refused("sky/none")
    monkeypatch.setenv("HF_TOKEN", "hf_a-wrong-token")
    # of a model that is there already: the copy will do, but it is said
    with pytest.warns(RuntimeWarning, match="did not answer"):
        skyinfer.load("sky/laya")
    message = refused("sky/none")
    assert "refuses the token" in message
    assert "wrong-token" not in message


def test_gated_repositories(server: HubServer, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    server.repos["sky/laya"] = repo(checkpoint, "gated")
    server.repos["sky/closed"] = repo(checkpoint, "gated-refused")
    assert f"accept its conditions at {server.endpoint}/sky/laya" in refused("sky/laya")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "accept its conditions" in refused("sky/closed")
    assert answer_of("sky/laya") == answer


@pytest.mark.parametrize("token", ["hf_line\nbreak", "hf_ümlaut"])
def test_a_token_that_cannot_be_sent(server: HubServer, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    message = refused("sky/laya")
    assert token[3:] not in message
    assert token[-5:] not in message


@pytest.mark.parametrize(("status", "words"), [(403, "forbids"), (429, "too many requests"), (500, "answered 500")])
def test_other_answers_of_the_hub(server: HubServer, status: int, words: str) -> None:
    server.status = status
    assert words in refused("sky/laya")


def test_repositories_of_other_things(server: HubServer, checkpoint: Path) -> None:
    files = repo(checkpoint).files
    server.repos["sky/text"] = repo({"config.json": b"{}", "pytorch_model.bin": b"x", "model.safetensors": b"x"})
    assert "neither a GGUF file nor a Laya checkpoint" in refused("sky/text")
    for missing, words in (("model.safetensors", "weights of other formats"), ("encoder/config.json", "config.json")):
        server.repos["sky/less"] = repo({name: data for name, data in files.items() if name != missing})
        assert words in refused("sky/less")
    server.repos["sky/empty"] = repo({})
    refused("sky/empty")
    assert server.fetched() == []


# ---------------------------------------------------------------------------------- the whole way


def test_conversion_takes_the_checkpoint(server: HubServer, checkpoint: Path, gguf: bytes, tmp_path: Path) -> None:
    server.repos["sky/laya"] = repo({**repo(checkpoint).files, "laya.gguf": gguf})
    out = skyinfer.convert("sky/laya", tmp_path / "out.gguf")
    assert skyinfer.load(out).name == "laya"
    assert "laya.gguf" not in server.fetched()
    server.repos["sky/gguf"] = repo({"laya.gguf": gguf})
    with pytest.raises(skyinfer.HubError, match="no Laya checkpoint"):
        skyinfer.convert("sky/gguf", tmp_path / "out2.gguf")


def test_pull_prints_where_the_model_is(server: HubServer, checkpoint: Path, gguf: bytes) -> None:
    first = repo({"laya.gguf": gguf})
    server.repos["sky/laya"] = first
    run = command("pull", "sky/laya")
    assert (run.returncode, run.stderr) == (0, "")
    path = Path(run.stdout.rstrip("\n"))
    assert path.parent.name == first.revisions["main"]
    assert path.read_bytes() == gguf
    # the hub's word is wanted, and the cache's is none but by request
    assert command("pull", "sky/laya", HF_HUB_OFFLINE="1").stdout == run.stdout
    server.status = 500
    assert "answered 500" in command("pull", "sky/laya").stderr
    server.status = None
    for name in ("laya", "./sky/laya", "s1-pico"):
        refused = command("pull", name)
        assert refused.returncode == 1
        assert "expected OWNER/NAME" in refused.stderr
    server.repos["sky/other"] = repo({"laya.gguf": gguf.replace(b"modern-bert", b"modern-burt")})
    assert "general.architecture" in command("pull", "sky/other").stderr


def test_commands_take_a_model_of_the_hub(server: HubServer, checkpoint: Path, answer: Any, tmp_path: Path) -> None:
    server.repos["sky/laya"] = repo(checkpoint)
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"state": "grey", "questions": QUESTIONS}), encoding="utf-8")
    run = command("decide", "-m", "sky/laya", str(request))
    assert (run.stderr, json.loads(run.stdout)["answers"]) == ("", answer)
    run = command("decide", str(request), SKYINFER_MODEL="sky/laya")
    assert json.loads(run.stdout)["model"] == "laya"
    run = command("decide", "-m", "sky/none", str(request))
    assert (run.returncode, run.stdout, run.stderr.count("\n")) == (1, "", 1)
    assert "no such repository" in run.stderr


def test_no_request_reaches_the_hub(server: HubServer, checkpoint: Path) -> None:
    serving = pytest.importorskip("serving")
    server.repos["sky/laya"] = server.repos["sky/decider"] = repo(checkpoint)
    with serving.serving() as one, one.client() as client:
        for name in ("sky/decider", "sky/decider@main", f"{server.endpoint}/sky/decider", "s1-pico"):
            assert client.post({"model": name, "state": "grey", "questions": QUESTIONS}).status == 404
        # as clients call their default model: the one that is served answers
        answer = client.post({"model": "sky/laya", "state": "grey", "questions": QUESTIONS})
        assert (answer.status, answer.json["model"]) == (200, "painted")
    assert server.asked == []


def test_nothing_is_imported_for_a_file() -> None:
    code = "import sys, skyinfer; skyinfer.load(); print('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
