"""Both pages in Chromium: first decision, 300 frames of the game, typing, broken files, no console error (web/browser).

Needs Debian's chromium (or CHROMIUM, its path) and npm ci --prefix web. SKYINFER_EXPECT_WEB makes a missing one a
failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from programs import need
from test_web import WEB, need_packages

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


def test_pages_in_a_browser() -> None:
    need_packages()
    if not Path(CHROMIUM).exists():
        if os.environ.get("SKYINFER_EXPECT_WEB"):
            pytest.fail(f"SKYINFER_EXPECT_WEB is set, and there is no {CHROMIUM}")
        pytest.skip(f"needs {CHROMIUM}")
    need("npm")
    run = subprocess.run(
        ["npm", "run", "--silent", "test:browser"], cwd=WEB, env=os.environ | {"PYTHON": sys.executable},
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "# fail 0" in run.stdout
    assert "# pass 0" not in run.stdout
