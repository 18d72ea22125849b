"""How many CPUs this process may really use, inside a container fewer than the machine shows; and limits of threads."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..core import border
from ..values import whole_number

MAX_THREADS = border.MAX_THREADS  # of a plan, and of batches at once


def checked_threads(threads: int | None) -> int | None:
    """An argument `threads`, of which None leaves the number to skyinfer.

    Raises:
        ValueError: it is no whole number from 1 to `MAX_THREADS`.
    """
    return None if threads is None else whole_number(threads, "threads", 1, MAX_THREADS)


def available_cpus(mounts: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """The CPUs in this process's affinity mask, bounded by the quotas of its control groups; at least 1.

    A group's quota bounds those below it, so the least one of the process's own group and all above it counts, in
    version 2 and 1.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in _groups(mounts, membership) if (quota := _quota(folder)) is not None]
    return max(1, int(min([cpus, *quotas])))


def _groups(mounts: Path, membership: Path) -> Iterator[Path]:
    """The folders that may hold the quota of this process's groups, and of those above them."""
    try:
        lines = membership.read_text().splitlines()
    except (OSError, ValueError):
        lines = []
    for line in ["0::/", "0:cpu:/", *lines]:  # a container may see its own group at the root and its path from outside
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = PurePosixPath(path)
        if ".." in group.parts:  # outside of what is mounted here
            continue
        for root in [mounts] if not controllers else [mounts / "cpu", mounts / controllers]:
            yield from (root / str(part).lstrip("/") for part in (group, *group.parents))


def _quota(group: Path) -> float | None:
    """CPUs' worth of time that one group allows, or None where it sets no bound."""
    try:
        allowed, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            allowed = (group / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu.cfs_period_us").read_text()
        except (OSError, ValueError):
            return None
    try:
        quota = float(allowed) / float(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return quota if 0 < quota < math.inf else None
