"""How much memory `skyinfer rows` takes: no more for a larger file, and little for one whose rows are large."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_compiled import QUESTIONS

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")
pq = pytest.importorskip("pyarrow.parquet")

# What the command has loaded before it answers, then all of it; the most memory that was resident, in MB.
_MEASURED = """
import sys, skyinfer
from skyinfer.command import rows
from skyinfer.command.main import main
def most():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
rows.import_arrow()
from skyinfer.rows import runs
skyinfer.load("s2-pico")
before = most()
assert main(sys.argv[1:]) == 0
print(most() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no /proc")
@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "jsonl"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, form: str) -> None:
    """80 MB of rows of 8 kB, in one row group; 100 MB is what may be taken above the start."""
    n, source, out = 10_000, tmp_path / f"in.{form}", tmp_path / f"out.{form}"
    rng = np.random.default_rng(0)
    notes = [rng.bytes(4000).hex() for _ in range(n)]
    table = pa.table({"id": range(n), "state": [f"vy {i % 13} dx {i % 41}" for i in range(n)], "note": notes})
    if form == "parquet":
        pq.write_table(table, source)
    elif form == "csv":
        csv.write_csv(table, source)
    elif form == "arrow":
        with pa.ipc.new_file(source, table.schema) as writer:
            writer.write_table(table, 1000)
    else:
        with source.open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in table.to_pylist())
    (tmp_path / "q.json").write_text(json.dumps({"sure": QUESTIONS["sure"]}))
    arguments = ["rows", source, "-q", tmp_path / "q.json", "-o", out, "-m", "s2-pico", "--threads", "2"]
    found = subprocess.run(
        [sys.executable, "-c", _MEASURED, *map(str, arguments)], check=True, capture_output=True, text=True
    )
    assert out.stat().st_size > source.stat().st_size
    assert float(found.stdout) < 100
