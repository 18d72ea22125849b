"""Who is asked when a model is distilled: what an endpoint may answer, when it is asked again, and what is kept."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest

import skyinfer
from skyinfer.distillation import LocalTeacher, RemoteTeacher, TeacherError, distill
from skyinfer.distillation.distilling import states_of
from skyinfer.distillation.kept import KeptAnswers
from skyinfer.errors import FormatError, SkyinferError
from skyinfer.train.rows import gather

PAINTED = Path(__file__).parents[1] / "examples" / "painted"
QUESTIONS: dict[str, Any] = {
    "act": {"type": "choice", "instructions": "What now?", "criteria": {"go": "drive on", "stop": "brake"}},
    "speed": {"type": "score", "instructions": "How fast?", "criteria": ["slow", "normal", "fast"]},
    "safe": {"type": "noul", "instructions": "Is it safe?"},
}
STATES = [{"n": n, "light": "red"} for n in range(150)]
MODEL = skyinfer.load(PAINTED)


@contextlib.contextmanager
def endpoint(answer: Callable[[int, Any, Any], tuple[int, dict[str, str], bytes] | None]) -> Iterator[str]:
    """A server whose answer to the n-th request is scripted: status, headers and body; None breaks the connection."""
    lock, n_requests = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                number = n_requests[0]
                n_requests[0] += 1
            found = answer(number, body, self)
            if found is None:
                self.connection.close()
                return
            status, headers, data = found
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

        def handle_one_request(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                super().handle_one_request()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def right(body: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps(MODEL.decide(body["state"], body["questions"])).encode()


def test_an_endpoint_and_a_model_say_the_same() -> None:
    paths = []

    def answer(number: int, body: Any, request: Any) -> tuple[int, dict[str, str], bytes]:
        paths.append((request.path, request.headers["authorization"], request.headers["content-type"]))
        return right(body)

    local = list(LocalTeacher(MODEL, QUESTIONS).ask(STATES))
    with endpoint(answer) as url:
        remote = list(RemoteTeacher(url, QUESTIONS, key="secret").ask(STATES))
        list(RemoteTeacher(f"{url}/prefix/v1/systemone", QUESTIONS).ask(STATES[:1]))
    assert [one.answers for one in remote] == [one.answers for one in local]
    assert [one.n_tokens for one in remote] == [one.n_tokens for one in local]
    assert all(one.seconds > 0 for one in [*local, *remote])
    assert set(paths) == {
        ("/v1/systemone", "Bearer secret", "application/json"),
        ("/prefix/v1/systemone", None, "application/json"),
    }
    # as rows of training take them, these are the teacher's own probabilities
    rows = [
        {"state": state, "questions": QUESTIONS, "answers": one.answers}
        for state, one in zip(STATES, remote, strict=True)
    ]
    dataset = gather(((f"row {i}", row) for i, row in enumerate(rows)), "rows")
    answers: Any = MODEL.decide(STATES[7], QUESTIONS)["answers"]
    found = {dataset.questions[e.question].id: e.target for e in dataset.examples if e.state == 7}
    assert found["act"] == pytest.approx(list(answers["act"]["probabilities"].values()), abs=1e-12)
    assert found["speed"] == pytest.approx(list(answers["speed"]["probabilities"].values()), abs=1e-12)
    assert found["safe"] == pytest.approx([1 - answers["safe"]["noul"], answers["safe"]["noul"]], abs=1e-12)


def test_what_fails_on_the_way_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = {0: 503, 1: 429, 2: None, 3: 500}

    def answer(number: int, body: Any, request: Any) -> tuple[int, dict[str, str], bytes] | None:
        if number in faults:
            status = faults[number]
            return None if status is None else (status, {"retry-after": "0"}, b"later")
        return right(body)

    waited: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", lambda self, timeout=None: waited.append(timeout))
    with endpoint(answer) as url:
        found = list(RemoteTeacher(url, QUESTIONS, at_once=1).ask(STATES[:2]))
    assert found[0].answers == next(iter(LocalTeacher(MODEL, QUESTIONS).ask(STATES[:1]))).answers
    pauses = [pause for pause in waited if pause in (0.0, 0.5, 1.0, 2.0, 4.0)]
    assert pauses == [0.0, 0.0, 2.0, 0.0]  # what the server says, or half a second that doubles


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, b"", "401.*it wants a key"),
        (422, b'{"detail": "no such\\nfield"}', "422.*no such"),
        (404, b"", "answered 404: Not Found"),
        (503, b"busy", "answered 503: 'busy', in 3 attempts"),
        (200, b"{", "not JSON"),
        (200, b"[1]", "no object"),
        (200, b'{"answers": {}}', "answers.act: is missing"),
        (200, b'{"answers": {"act": {"choice": "go"}}}', "answers.act: has no probabilities"),
        (
            200,
            b'{"answers": {"act": {"probabilities": {"go": 0.5, "stop": 0.1}}}}',
            "answers.act: probabilities sum to",
        ),
        (200, b'{"answers": {"act": {"probabilities": {"fly": 1.0}}}}', "'fly' is no answer"),
    ],
)
def test_what_cannot_be_learned_from_ends_the_run(status: int, body: bytes, message: str) -> None:
    with endpoint(lambda number, asked, request: (status, {"retry-after": "0"}, body)) as url:
        teacher = RemoteTeacher(url, QUESTIONS, retries=2, at_once=1)
        with pytest.raises(TeacherError, match=message) as caught:
            list(teacher.ask(STATES[:3]))
    assert str(caught.value).startswith(f"{url}/v1/systemone: ")


def test_a_key_goes_to_no_address_that_an_answer_names() -> None:
    asked: list[str] = []

    def elsewhere(number: int, body: Any, request: Any) -> tuple[int, dict[str, str], bytes]:
        asked.append(request.headers["authorization"])
        return right(body)

    with endpoint(elsewhere) as other:
        for status in (301, 302, 303, 307, 308):
            answer = (status, {"location": other}, b"")
            with endpoint(lambda *_, answer=answer: answer) as url, pytest.raises(TeacherError, match=f"{status}: "):
                list(RemoteTeacher(url, QUESTIONS, key="secret").ask(STATES[:1]))
    assert asked == []


def test_a_fault_does_not_wait_for_requests_that_are_to_be_tried_again() -> None:
    waiting = threading.Event()

    def answer(number: int, body: Any, request: Any) -> tuple[int, dict[str, str], bytes]:
        if body["state"] == STATES[0]:
            waiting.wait(10)
            return 404, {}, b""
        waiting.set()
        return 503, {"retry-after": "30"}, b""

    with endpoint(answer) as url:
        start = time.monotonic()
        with pytest.raises(TeacherError, match="404"):
            list(RemoteTeacher(url, QUESTIONS, at_once=2).ask(STATES[:2]))
        assert time.monotonic() - start < 15


@pytest.mark.parametrize(
    "options", [{"at_once": 0}, {"retries": -1}, {"rate": 0}, {"rate": float("nan")}, {"seconds": 0}]
)
def test_numbers_that_no_endpoint_can_be_asked_with(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}: expected"):
        RemoteTeacher("http://localhost", QUESTIONS, **options)


def test_nobody_there_and_addresses_that_are_none() -> None:
    with endpoint(lambda number, asked, request: None) as url:
        pass
    with pytest.raises(TeacherError, match=r"cannot be asked: .*refused.*, in 1 attempts"):
        list(RemoteTeacher(url, QUESTIONS, retries=0).ask(STATES[:1]))
    for wrong in ("ftp://a", "http://", "http://user:word@host"):
        with pytest.raises(TeacherError, match="address"):
            RemoteTeacher(wrong, QUESTIONS)


def test_a_rate_is_kept() -> None:
    times: list[float] = []

    def answer(number: int, body: Any, request: Any) -> tuple[int, dict[str, str], bytes]:
        times.append(time.monotonic())
        return right(body)

    with endpoint(answer) as url:
        list(RemoteTeacher(url, QUESTIONS, at_once=8, rate=20).ask(STATES[:11]))
    assert times[-1] - times[0] >= 10 / 20 * 0.9


def test_answers_are_kept_for_the_same_teacher_and_questions(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    kept = KeptAnswers(path, "t", QUESTIONS)
    taught = list(LocalTeacher(MODEL, QUESTIONS).ask(STATES[:3]))
    with kept.adding() as file:
        for state, one in zip(STATES[:3], taught, strict=True):
            file.add(state, one)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"state": {"n": 3}, "quest')  # a run that was killed
    assert KeptAnswers(path, "t", QUESTIONS).found == kept.found
    assert path.read_bytes() == whole
    rows = [(f"line {i}", json.loads(line)) for i, line in enumerate(whole.splitlines())]
    assert len(gather(rows, "rows").examples) == 9  # training reads the file as it is
    with pytest.raises(SkyinferError, match="line 1: holds answers of 't'"):
        KeptAnswers(path, "u", QUESTIONS)
    with pytest.raises(SkyinferError, match="line 1: holds answers to other questions"):
        KeptAnswers(path, "t", {"act": QUESTIONS["act"]})
    for line, message in ((b"{", "not JSON"), (b'{"state": 1}', "is no answer of a teacher")):
        path.write_bytes(whole + line + b"\n")
        with pytest.raises(FormatError, match=f"line 4: .*{message}"):
            KeptAnswers(path, "t", QUESTIONS)
    path.write_bytes(whole[:-1])  # as some editors leave it
    assert KeptAnswers(path, "t", QUESTIONS).found == kept.found
    assert path.read_bytes() == whole


def kept_of(path: Path, teacher: LocalTeacher, states: list[Any] = STATES) -> KeptAnswers:
    kept = KeptAnswers(path, teacher.name, QUESTIONS)
    with kept.adding() as file:
        for state, one in zip(states, teacher.ask(states), strict=True):
            file.add(state, one)
    return kept


def test_answers_in_8_bits_are_of_another_teacher(tmp_path: Path) -> None:
    teacher = LocalTeacher(skyinfer.load(PAINTED, precision="int8"), QUESTIONS)
    assert teacher.name == f"{MODEL.name} (int8, {MODEL.isa})"
    path = tmp_path / "answers.jsonl"
    kept_of(path, teacher).check(teacher)
    assert json.loads(path.read_text().splitlines()[0])["x_teacher"] == teacher.name
    with pytest.raises(SkyinferError, match=rf"holds answers of '{MODEL.name} \(int8, {MODEL.isa}\)'"):
        KeptAnswers(path, LocalTeacher(MODEL, QUESTIONS).name, QUESTIONS)


@pytest.mark.parametrize("teacher", ["http://127.0.0.1:1/v1/systemone", MODEL, LocalTeacher(MODEL, QUESTIONS)])
def test_only_a_teacher_that_is_loaded_here_has_a_precision(teacher: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match="precision: int8 is for a teacher that is loaded here; this one has its own"):
        distill(STATES, QUESTIONS, teacher, tmp_path / "out", precision="int8")
    with pytest.raises(ValueError, match="precision: expected one of exact, int8, got 'int4'"):
        distill(STATES, QUESTIONS, PAINTED, tmp_path / "out", precision="int4")
    assert list(tmp_path.iterdir()) == []


def test_answers_of_a_model_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    pytest.importorskip("torch")  # which distill asks for before it asks a teacher
    teacher = LocalTeacher(MODEL, QUESTIONS)
    path = tmp_path / "answers.jsonl"
    kept_of(path, teacher)
    whole, kept = path.read_bytes(), KeptAnswers(path, MODEL.name, QUESTIONS)
    kept.check(teacher)
    for isa in skyinfer.info()["isa"]["supported"]:  # the last bits differ
        kept.check(LocalTeacher(skyinfer.load(PAINTED, isa=isa), QUESTIONS))

    other = tmp_path / MODEL.name
    checkpoints.paint(other, **checkpoints.SIZES["pico"], seed=1)
    tuned = tmp_path / "tuned" / MODEL.name
    shutil.copytree(PAINTED, tuned)
    weights = checkpoints.read_safetensors(tuned / "model.safetensors")
    checkpoints.write_safetensors(
        tuned / "model.safetensors",
        {name: value * np.float32(1.01) if "scorer" in name else value for name, value in weights.items()},
    )
    for changed in (other, tuned):
        model = skyinfer.load(changed, temperature_clamp=False)
        assert model.name == MODEL.name
        with pytest.raises(SkyinferError, match=f"holds answers of another model named '{MODEL.name}'.*name another"):
            kept.check(LocalTeacher(model, QUESTIONS))
    with pytest.raises(SkyinferError, match="of another model"):
        distill(
            STATES,
            QUESTIONS,
            skyinfer.load(other, temperature_clamp=False),
            tmp_path / "out",
            answers=path,
            only_cost=True,
        )
    assert path.read_bytes() == whole

    path.write_bytes(whole.replace(b'"go"', b'"went"'))
    with pytest.raises(SkyinferError, match="other questions"):
        KeptAnswers(path, MODEL.name, QUESTIONS)
    lines = [json.loads(line) for line in whole.splitlines()]
    lines[0]["answers"]["act"] = {"fly": 1.0}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    with pytest.raises(FormatError, match=r"answers\.act: 'fly' is no answer"):
        KeptAnswers(path, MODEL.name, QUESTIONS).check(teacher)


def test_a_model_that_reads_less_of_long_states_is_told_apart(tmp_path: Path) -> None:
    states = [*STATES[:40], " ".join(f"car {i}" for i in range(400)), *STATES[40:50]]
    kept = kept_of(tmp_path / "answers.jsonl", LocalTeacher(MODEL, QUESTIONS), states)
    shorter = tmp_path / MODEL.name
    shutil.copytree(PAINTED, shorter)
    agent = json.loads((shorter / "rl_agent_config.json").read_text("utf-8"))
    (shorter / "rl_agent_config.json").write_text(json.dumps({**agent, "max_len": agent["max_len"] // 2}), "utf-8")
    with pytest.raises(SkyinferError, match=r"about the state .*car 0 car 1"):
        kept.check(LocalTeacher(skyinfer.load(shorter), QUESTIONS))


def test_an_endpoint_that_says_it_is_another_model_is_told_apart(tmp_path: Path) -> None:
    path, names = tmp_path / "answers.jsonl", ["large-1"]

    def answer(number: int, body: Any, request: Any) -> tuple[int, dict[str, str], bytes]:
        found: Any = {**MODEL.decide(body["state"], body["questions"])}
        found.pop("model")
        return 200, {}, json.dumps(found | ({"model": names[0]} if names[0] else {})).encode()

    def ask(states: list[Any]) -> None:
        teacher = RemoteTeacher(url, QUESTIONS, at_once=1)
        kept = KeptAnswers(path, teacher.name, QUESTIONS)
        with kept.adding() as file:
            for state, one in zip(states, teacher.ask(states), strict=True):
                file.add(state, one)

    with endpoint(answer) as url:
        ask(STATES[:3])
        ask(STATES[3:5])
        whole = path.read_bytes()
        assert [json.loads(line)["x_model"] for line in whole.splitlines()] == ["large-1"] * 5
        names[0] = "large-2"
        with pytest.raises(SkyinferError, match=r"of the model 'large-1', and .* says now that it is 'large-2'; name"):
            ask(STATES[5:7])
        assert path.read_bytes() == whole
        names[0] = ""  # it may say nothing
        ask(STATES[5:7])
        assert "x_model" not in json.loads(path.read_bytes().splitlines()[-1])
        names[0] = "large-1"
        ask(STATES[7:8])


@pytest.mark.parametrize(
    "content",
    [
        b"notes\nof last year", b'{"state": 1, "answers": {}}', b'{"state": 1}\n{"state": 2', b'{"state": 1}\n{"id": 2',
        b"\xff",
    ],
)  # fmt: skip
def test_a_file_that_holds_something_else_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(FormatError):
        KeptAnswers(path, "t", QUESTIONS)
    assert path.read_bytes() == content


def test_states_of_files(tmp_path: Path) -> None:
    rows, texts = tmp_path / "rows.jsonl", tmp_path / "texts.txt"
    rows.write_text('{"state": {"a": 1}, "answers": 5}\n\n{"state": "b"}\n')
    assert states_of(rows) == [{"a": 1}, "b"]
    texts.write_text("ümläut\n\n{\n", "utf-8")
    assert states_of(texts) == ["ümläut", "{"]
    for content, message in (
        ("{\n", "line 1: is not JSON"),
        ('{"a": 1}\n', "line 1: has no state"),
        ("\n", "no states"),
    ):
        rows.write_text(content)
        with pytest.raises(SkyinferError, match=message):
            states_of(rows)
    for content, message in ((b"a\n\xff\n", "line 2: is not UTF-8"), (b"\xef\xbb\xbfa\n", "line 1: begins with")):
        for path in (texts, rows):
            path.write_bytes(content if path is texts else content.replace(b"a", b'{"state": 1}'))
            with pytest.raises(FormatError, match=message):
                states_of(path)
    with pytest.raises(SkyinferError, match=r"\.jsonl"):
        states_of(tmp_path / "states.csv")
