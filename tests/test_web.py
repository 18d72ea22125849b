"""The browser's host: what is shipped answers as Python does, is what the sources give, and passes its own tests.

The first needs Node.js, the others what web/package.json names, too: npm ci --prefix web. SKYINFER_EXPECT_WEB makes a
missing one a failure. The modules are test_wasm.py's, the pages in a browser test_pages.py's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from programs import need

import skyinfer
from skyinfer.files import places
from skyinfer.games.flappy import QUESTIONS, Flappy

ROOT = Path(__file__).parents[1]
WEB = ROOT / "web"
SHIPPED = ROOT / "src" / "skyinfer" / "web"
MOST_GZIP_BYTES = 25_000  # of the host, minified

# Reads requests as lines, writes answers as lines. What `Model` of the host is given is what a page gives it.
ANSWERING = """
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
const [host, module, model] = process.argv.slice(1);
const { load } = await import(host);
const opened = await load(readFileSync(model), module ? { module: readFileSync(module) } : {});
for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try { answer = opened.decideText(line); }
  catch (error) { answer = JSON.stringify({ loc: error.loc, reason: error.reason }); }
  process.stdout.write(answer + "\\n");
}
"""


def node(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = ["node", "--no-warnings", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8", **options)


def need_packages() -> None:
    need("node")
    if not all((WEB / "node_modules" / name).is_dir() for name in ("esbuild", "terser")):
        if os.environ.get("SKYINFER_EXPECT_WEB"):
            pytest.fail("SKYINFER_EXPECT_WEB is set, and web/node_modules is not there")
        pytest.skip("needs the packages of web/package.json: npm ci --prefix web")


def answers(bodies: list[str], module: str = "", model: str = places.DEFAULT) -> list[Any]:
    """What the shipped host answers to requests, in plain Node.js."""
    need("node")
    host = (SHIPPED / "skyinfer.js").as_uri()
    path = str(SHIPPED / module) if module else ""
    lines = "\n".join(bodies) + "\n"
    run = node("--input-type=module", "-e", ANSWERING, "--", host, path, places.shipped(model), input=lines)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.split("\n")[:-1]]


def near(found: Any, expected: Any) -> None:
    if isinstance(expected, float):
        assert type(found) is float
        assert found == pytest.approx(expected, abs=2e-5)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            near(found[key], value)
    else:
        assert found == expected


@pytest.mark.parametrize("name", places.SHIPPED)
@pytest.mark.parametrize("module", ["", "skyinfer.wasm"])  # "": it finds the one beside itself
def test_the_shipped_host_answers_as_python_does(module: str, name: str) -> None:
    model = skyinfer.load(name)
    game = Flappy(7)
    bodies = []
    for _ in range(50):
        bodies.append(json.dumps({"state": game.state_text(), "questions": QUESTIONS}))
        game.step(game.teacher())
    odd = {"10": {"type": "choice", "instructions": 1.0, "criteria": ["b", 2.5, 1e22, True]}, "2": QUESTIONS["danger"]}
    bodies.append(json.dumps({"state": {"2": 1.0, "1": [10**30, -0.0, "\u00e9\U0001f600"]}, "questions": odd}))
    bodies.append(json.dumps({"state": ["turn " * 90, "last"], "questions": QUESTIONS}))
    for body, found in zip(bodies, answers(bodies, module, name), strict=True):
        request = json.loads(body)
        near(found, json.loads(json.dumps(model.decide(request["state"], request["questions"]))))


def test_the_shipped_host_refuses_as_python_does() -> None:
    model = skyinfer.load()

    def asked(question: Any) -> dict[str, Any]:
        return {"state": "a", "questions": {"q": question}}

    def choice(*labels: str) -> dict[str, Any]:
        return asked({"type": "choice", "instructions": "Which?", "criteria": list(labels)})

    wrong: list[dict[str, Any]] = [
        {"state": None, "questions": {}},
        {"state": "a", "questions": []},
        {"state": "a", "questions": QUESTIONS["danger"]},
        {"state": "a\ud800", "questions": {"q": QUESTIONS["danger"]}},
        asked({"type": "rank"}),
        choice("a", "it's", "a"),
        choice(*map(str, range(300))),
    ]
    for body, found in zip(wrong, answers([json.dumps(body) for body in wrong]), strict=True):
        with pytest.raises(skyinfer.RequestError) as caught:
            model.decide(**body)
        assert found == {"loc": list(caught.value.loc), "reason": caught.value.message}
    assert answers(['{"state": 1,}', "[]", "{}"])[0]["reason"].startswith("not JSON: ")


def test_what_is_shipped_is_built_from_the_sources(tmp_path: Path) -> None:
    import gzip

    need_packages()
    run = node("scripts/build.mjs", tmp_path, cwd=WEB)
    assert run.returncode == 0, run.stderr
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    shipped = {path.name: path.read_bytes() for path in SHIPPED.iterdir() if path.suffix not in (".wasm", ".py", "")}
    assert built.keys() == shipped.keys()
    assert [name for name in built if built[name] != shipped[name]] == [], "build again: npm run build --prefix web"
    assert len(gzip.compress(built["skyinfer.js"], 9)) <= MOST_GZIP_BYTES


def test_the_hosts_own_tests(tmp_path: Path) -> None:
    need_packages()
    cases = tmp_path / "cases"
    command = [sys.executable, WEB / "tests" / "write_cases.py", cases]
    written = subprocess.run(command, capture_output=True, text=True, check=False)
    assert written.returncode == 0, written.stderr
    run = subprocess.run(
        ["npm", "test", "--silent"], cwd=WEB, env=os.environ | {"SKYINFER_CASES": str(cases)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert int(re.findall(r"^# pass (\d+)$", run.stdout, re.MULTILINE)[0]) > 70
    assert "# fail 0" in run.stdout


TYPED = """
import { flappy, load, type Answer, type Questions, type Response } from "skyinfer";
const questions: Questions = flappy.QUESTIONS;
export async function asked(bytes: Uint8Array): Promise<number> {
  const model = await load(bytes, { onProgress: (loaded: number, total: number | undefined) => void [loaded, total] });
  const { answers }: Response = model.decide("a", questions, { minConfidence: 0.5 });
  const answer: Answer = answers["action"]!;
  return answer.type === "choice" ? answer.probabilities["thrust"]! : model.compile(questions).step("a")[0]!;
}
"""


def test_the_package_as_npm_publishes_it(tmp_path: Path) -> None:
    """It runs the example of its README, and its types are those of a strict program."""
    need_packages()
    need("npm")
    pack = ["npm", "pack", "--silent", "--pack-destination", str(tmp_path)]
    subprocess.run(pack, cwd=WEB, check=True, capture_output=True, text=True)
    (packed,) = tmp_path.glob("skyinfer-*.tgz")
    with tarfile.open(packed) as package:
        package.extractall(tmp_path, filter="data")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "package").rename(tmp_path / "node_modules" / "skyinfer")

    readme = (tmp_path / "node_modules" / "skyinfer" / "README.md").read_text("utf-8")
    example = readme.split("```js\n")[1].split("```")[0]
    address = json.dumps(str(places.shipped("s1-pico")))
    example = example.replace('load("s1-pico.gguf")', f"load(readFileSync({address}))")
    (tmp_path / "example.mjs").write_text('import { readFileSync } from "node:fs";\n' + example, encoding="utf-8")
    run = node(tmp_path / "example.mjs")
    assert run.returncode == 0, run.stderr
    questions = {name: QUESTIONS[name] for name in ("action", "danger")}
    python = skyinfer.load().decide("vy 0 dx 36 up 9 dn 7 nxt 10 alt 32", questions)
    action, danger = (skyinfer.choice_answer(python, "action"), skyinfer.noul_answer(python, "danger"))
    expected = [action["probabilities"]["thrust"], danger["noul"]]
    assert [float(number) for number in run.stdout.split()] == pytest.approx(expected, abs=1e-5)

    (tmp_path / "typed.mts").write_text(TYPED, encoding="utf-8")
    compiler = WEB / "node_modules" / "typescript" / "bin" / "tsc"
    options = [
        "--noEmit",
        "--strict",
        "--module",
        "nodenext",
        "--target",
        "es2022",
        "--lib",
        "es2022,dom",
        "--types",
        "",
    ]
    check = node(compiler, *options, tmp_path / "typed.mts", cwd=tmp_path)
    assert check.returncode == 0, check.stdout + check.stderr


def test_unicode_tables_are_the_packages() -> None:
    """Of the version that golden data and these tables were made with; another one may know other characters."""
    import tokenizers

    tables = WEB / "src" / "text" / "unicode_tables.ts"
    if f"tokenizers {tokenizers.__version__}:" not in tables.read_text("utf-8"):
        pytest.skip(f"made with another version than {tokenizers.__version__}")
    command = [sys.executable, WEB / "scripts" / "unicode_tables.py", "--check"]
    check = subprocess.run(command, capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stderr
