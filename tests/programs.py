"""Programs that a few tests run, and where a missing one is a fault and not a reason to skip."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil

import pytest

# Names of programs that a run in CI has said it cannot have (.ci/run, where it may not install any).
WITHOUT_VARIABLE = "SKYINFER_TESTS_WITHOUT"


def need(*programs: str) -> None:
    """Skip the test that calls this where one of `programs` is missing; in CI on Linux and x86-64, fail it."""
    missing = [name for name in programs if shutil.which(name) is None]
    if not missing:
        return
    machine = (platform.system(), platform.machine())
    excused = set(missing) <= set(os.environ.get(WITHOUT_VARIABLE, "").split())
    if os.environ.get("CI") and machine == ("Linux", "x86_64") and not excused:
        pytest.fail(f"in CI this test must run, and there is no {', '.join(missing)}")
    pytest.skip(f"needs {', '.join(missing)}")


def need_package(name: str) -> None:
    """Skip the test that calls this where a package is missing, which .ci/run and the workflow install."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs the package {name}")
