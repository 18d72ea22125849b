"""How many CPUs a process may use, by its affinity and by control groups of both versions, whole and broken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skyinfer.runtime.cpus import available_cpus

V2, QUOTA, PERIOD = "cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, 8, id="no control group"),
        pytest.param({V2: "400000 100000\n"}, 4, id="version 2"),
        pytest.param({V2: "250000 100000"}, 2, id="version 2, two CPUs and a half"),
        pytest.param({V2: "50000 100000\n"}, 1, id="version 2, half a CPU"),
        pytest.param({V2: "1600000 100000\n"}, 8, id="version 2, more than there are"),
        pytest.param({V2: "max 100000\n"}, 8, id="version 2, no bound"),
        pytest.param({QUOTA: "300000\n", PERIOD: "100000\n"}, 3, id="version 1"),
        pytest.param({QUOTA: "-1\n", PERIOD: "100000\n"}, 8, id="version 1, no bound"),
        pytest.param({V2: "200000 100000\n", QUOTA: "300000\n", PERIOD: "100000\n"}, 2, id="both"),
        pytest.param(
            {V2: "max\n", QUOTA: "300000\n", PERIOD: "100000\n"}, 3, id="version 2 cut short, version 1 whole"
        ),
        pytest.param({V2: ""}, 8, id="empty"),
        pytest.param({V2: "many few\n"}, 8, id="not numbers"),
        pytest.param({V2: "400000 0\n"}, 8, id="no period"),
        pytest.param({V2: "0 100000\n"}, 8, id="nothing"),
        pytest.param({V2: "-5 100000\n"}, 8, id="less than nothing"),
        pytest.param({V2: "nan 100000\n"}, 8, id="not a number"),
        pytest.param({V2: "inf 100000\n"}, 8, id="infinity"),
        pytest.param({V2: "400000 inf\n"}, 8, id="an infinite period"),
        pytest.param({V2: "\xff\xfe"}, 8, id="not text"),
        pytest.param({QUOTA: "300000\n"}, 8, id="version 1 without a period"),
        pytest.param({QUOTA: "x\n", PERIOD: "\n"}, 8, id="version 1, not numbers"),
    ],
)
def test_control_groups(files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    assert available_cpus(tmp_path, tmp_path / "none") == expected


@pytest.mark.parametrize(
    ("membership", "quotas", "expected"),
    [
        pytest.param("0::/system.slice/game.service\n", {"system.slice/game.service": 1}, 1, id="own"),
        pytest.param("0::/user.slice/deep\n", {"user.slice": 3, "user.slice/deep": None}, 3, id="above"),
        pytest.param("0::/a/b\n", {"a": 2, "a/b": 4}, 2, id="the least"),
        pytest.param("0::/a\n", {"b": 1}, 8, id="another's"),
        pytest.param("0::/docker/0123\n", {".": 2}, 2, id="a path from outside the container"),
        pytest.param("0::/../../x\n", {".": 2}, 2, id="a path that leads out"),
        pytest.param("4:cpu,cpuacct:/job\n2:memory:/other\n", {"cpu/job": 3}, 3, id="version 1"),
        pytest.param("4:cpu,cpuacct:/job\n", {"cpu,cpuacct/job": 3}, 3, id="version 1, by all controllers"),
        pytest.param("2:cpuset:/job\n", {"cpuset/job": 1}, 8, id="another controller"),
        pytest.param("garbage\n::\n0:\n", {}, 8, id="not a membership"),
    ],
)
def test_the_process_has_a_group_of_its_own(
    membership: str,
    quotas: dict[str, int | None],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    for group, cpus in quotas.items():
        folder = tmp_path / "mounts" / group
        folder.mkdir(parents=True, exist_ok=True)
        if group.startswith("cpu"):
            (folder / "cpu.cfs_quota_us").write_text(f"{cpus}00000\n")
            (folder / "cpu.cfs_period_us").write_text("100000\n")
        else:
            (folder / "cpu.max").write_text(f"{cpus}00000 100000\n" if cpus else "max 100000\n")
    (tmp_path / "membership").write_text(membership)
    assert available_cpus(tmp_path / "mounts", tmp_path / "membership") == expected


def test_without_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert available_cpus(tmp_path, tmp_path / "none") == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cpus(tmp_path, tmp_path / "none") == 1


def test_here() -> None:
    assert 1 <= available_cpus() <= (os.cpu_count() or 1)
