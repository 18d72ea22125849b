"""Data, training and judgement of s1-pico: rows tell the truth about states, and one command makes a model of them."""

from __future__ import annotations

import json
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_flappy import numbers

import skyinfer
from skyinfer.games import judging, pilots, s1_pico, s2_pico
from skyinfer.games.flappy import DIFFICULTIES, MARGINS, QUESTIONS, Flappy
from skyinfer.train.rows import gather

PAINTED = Path(__file__).parents[1] / "examples" / "painted"


def disturbed(seed: int, difficulty: str = "hard", chance: int = 0) -> Iterator[Flappy]:
    return pilots.disturbed(pilots.TeacherPilot(), Flappy(seed, difficulty), random.Random(f"{seed} {chance}"))


def test_preference_agrees_with_the_teacher_and_is_even_where_nothing_matters() -> None:
    found = []
    for game in (game for seed in range(6) for game in disturbed(seed)):
        p = s1_pico.preference(game)
        assert 0 <= p <= 1
        # where both are equally good the teacher glides
        assert (p > 0.5) == game.teacher() or p == pytest.approx(0.5, abs=1e-9)
        found.append(p)
    assert min(found) < 0.01
    assert max(found) > 0.99
    assert sum(0.4 < p < 0.6 for p in found) > len(found) / 20


def test_rows_are_the_mean_truth_of_all_visits_to_a_text() -> None:
    visits = s1_pico.Visits()
    thrust, danger = defaultdict(list), defaultdict(list)
    for number in range(12):  # the same game several times, disturbed in other ways
        for game in disturbed(0, DIFFICULTIES[number % 3], number):
            text = game.state_text()
            visits.add(game)
            thrust[text].append(s1_pico.preference(game))
            ahead = game.copy()
            danger[text].append(not all(ahead.step(False) for _ in range(30)))
    assert len(visits) == len(thrust)
    others = 0
    for row in visits.rows():
        text, answers = row["state"], row["answers"]
        assert row["questions"] == QUESTIONS
        assert answers["action"]["thrust"] == pytest.approx(statistics.mean(thrust[text]), abs=1e-4)
        assert sum(answers["action"].values()) == pytest.approx(1)
        assert row["x_visits"] == len(thrust[text])
        if "danger" in answers:
            others += 1
            assert answers["danger"] == pytest.approx(statistics.mean(danger[text]), abs=1e-4)
            room = min(numbers(text)[2:4])
            assert answers["margin"] == ("none" if room < 1 else "tight" if room < 4 else "comfortable")
    assert any(len(set(found)) > 1 for found in thrust.values())  # a text does not tell everything
    assert others == pytest.approx(len(visits) / 3, abs=1)


def test_flights_for_data_end_in_crashes_and_leave_the_course() -> None:
    ended, margins, dangers = [], set(), set()
    for seed in range(40):
        for game in disturbed(seed):
            margins.add(game.margin())
            dangers.add(game.will_crash())
            assert game.alive
        ended.append(game.alive)
    assert set(ended) == {False, True}
    assert (margins, dangers) == ({0, 1, 2}, {False, True})


def test_rows_repeat_from_the_seed_and_are_fit_to_train_on(tmp_path: Path) -> None:
    files = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        visits = s1_pico.Visits()
        s1_pico.collect(pilots.TeacherPilot(), visits, 400, random.Random(seed))
        s1_pico.write_rows(tmp_path / name, visits)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1] != files[2]
    rows = [json.loads(line) for line in files[0].splitlines()]
    dataset = gather(((str(number), row) for number, row in enumerate(rows)), "rows")
    assert (len(dataset.states), dataset.n_examples) == (len(rows), len(rows) + 2 * -(-len(rows) // 3))
    assert {question.id for question in dataset.questions} == {"action", "danger", "margin"}
    assert len(rows) >= 400


def test_seeds_of_training_and_of_judgement_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: dict[str, set[int]] = {"training": set(), "judging": set()}
    plays = ["training"]

    def noted(seed: int, difficulty: str) -> Flappy:
        seeds[plays[0]].add(seed)
        return Flappy(seed, difficulty)

    monkeypatch.setattr(s1_pico, "Flappy", noted)
    monkeypatch.setattr(judging, "Flappy", noted)
    s1_pico.collect(pilots.TeacherPilot(), s1_pico.Visits(), 300, random.Random(0))
    plays[0] = "judging"
    judging.judge_states(skyinfer.load(PAINTED), set(), 100)
    judging.flights(pilots.RandomPilot, 5, 100, "hard")
    assert min(seeds["training"]) >= 1 << 32
    assert 0 <= min(seeds["judging"]) < 5
    assert max(seeds["judging"]) < 1 << 32


class Oracle:
    """In place of a model: reads margin off the text, finds danger in altitude alone, thrusts below a gap's middle."""

    architecture = "s1"

    def compile(self, questions: dict[str, Any]) -> Oracle:
        self.n = len(questions)
        return self

    def step(self, text: str) -> np.ndarray:
        _, _, up, dn, _, alt = numbers(text)
        margin = [0.0, 0.0, 0.0]
        margin[0 if min(up, dn) < 1 else 1 if min(up, dn) < 4 else 2] = 1.0
        danger = 1 - alt / 62
        return np.array([float(dn < up), float(dn >= up), 1 - danger, danger, *margin][: 2 if self.n == 1 else None])


def test_judgement_of_an_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "N_STATES", 300)
    seen = {next(iter(disturbed(1_000_000))).state_text()}
    model: Any = Oracle()
    scores = judging.judge_states(model, seen, 500)
    assert scores["margin"]["accuracy"] == 1.0
    assert 0.6 < scores["danger"]["auc"] < 0.99
    assert 0.02 < scores["danger"]["ece"] < 0.5
    assert scores["states"] >= 500
    said: list[str] = []
    scores = judging.judge(model, seen, 4, 120, said.append)
    flown = scores["flights"]
    assert flown["teacher"] == {
        "flights": 4, "survived": 4, "frames": {"min": 120, "median": 120, "max": 120}, "seconds": 2.0, "gaps": 1
    }  # fmt: skip
    assert flown["random"]["survived"] == 0
    reached = scores["reached"]
    assert reached["median flight, of the teacher's"] == flown["model"]["frames"]["median"] / 120
    assert reached["median flight, of chance's"] == (
        flown["model"]["frames"]["median"] / flown["random"]["frames"]["median"]
    )
    assert scores["met"]["margin accuracy"]
    assert not scores["met"]["median flight, of chance's"]
    text = judging.as_text(scores)
    assert text.count("NOT MET") == sum(not met for met in scores["met"].values())
    assert said


def test_a_memory_changes_no_flight() -> None:
    model = skyinfer.load(PAINTED)
    remembering = judging.model_pilots(model)
    for seed in range(4):
        game, again = Flappy(seed, "easy"), Flappy(seed, "easy")
        assert pilots.fly(pilots.ModelPilot(model), game, 600) == pilots.fly(remembering(seed), again, 600)
        assert game.state_text() == again.state_text()


@pytest.mark.parametrize("architecture", ["s1", "s2"])
def test_the_command_makes_a_model_and_goes_on_where_it_was(
    architecture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(judging, "N_STATES", 200)
    small = ["--rounds", "2", "--states", "120", "--epochs", "1", "--flights", "2", "--minutes", "0.02"]
    recipe, name = (s2_pico.RECIPE if architecture == "s2" else s1_pico.Recipe()), f"{architecture}-pico"
    assert (
        s1_pico.main(["-o", str(tmp_path / "a"), *small], recipe) == 1
    )  # the requirements are not met, and that is said
    assert "NOT MET" in capsys.readouterr().out
    report = json.loads((tmp_path / "a" / "report.json").read_text("utf-8"))
    assert report["recipe"]["states"] == 120
    assert report["flights"]["model"]["flights"] == 2
    assert report["recipe"]["architecture"] == architecture
    file = tmp_path / "a" / f"{name}.gguf"
    assert report["bytes"] == file.stat().st_size < 500_000
    model = skyinfer.load(file)
    assert (model.name, model.config.max_tokens, model.config.max_head_tokens) == (name, 256, 96)
    assert model.config.architecture == architecture
    answers = model.decide("vy 0 dx 36 up 9 dn 7 nxt 10 alt 32", QUESTIONS)["answers"]
    assert list(answers["action"]["probabilities"]) == ["thrust", "glide"]
    assert list(answers["margin"]["legend"].values()) == list(MARGINS)

    # the second round is lost: it is made again, the same, and the first stays
    before = file.read_bytes()
    first = (tmp_path / "a" / "round-0" / "model.safetensors").stat().st_mtime_ns
    for path in sorted((tmp_path / "a" / name).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (tmp_path / "a" / "rows-1.jsonl").unlink()
    s1_pico.main(["-o", str(tmp_path / "a"), *small], recipe)
    assert (tmp_path / "a" / "round-0" / "model.safetensors").stat().st_mtime_ns == first
    assert file.read_bytes() == before


def test_a_faulty_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for faulty in (["--rounds", "0"], ["--states", "-1"], ["--minutes", "0"], ["--flights", "x"]):
        with pytest.raises(SystemExit) as error:
            s1_pico.main(["-o", str(tmp_path / "out"), *faulty])
        assert error.value.code == 2
        assert faulty[0] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_steps_of_another_recipe_are_not_taken_for_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"seed": 7}\n', "utf-8")
    assert s1_pico.main(["-o", str(tmp_path)]) == 2
    assert "holds steps of another recipe" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.json"]
