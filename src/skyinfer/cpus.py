"""How many CPUs this process may really use: inside a container that is fewer than the machine shows."""

from __future__ import annotations

import os
from pathlib import Path


def available_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """The CPUs in this process's affinity mask, bounded by its cgroup's quota (version 2, then 1); at least 1."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return max(1, int(min(cpus, quota))) if quota else cpus


def _quota(cgroup: Path) -> float | None:
    """CPUs' worth of time that the cgroup allows, or None where it sets no bound."""
    try:
        allowed, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            allowed = (cgroup / "cpu/cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text()
        except OSError:
            return None
    try:
        return float(allowed) / float(period) if float(allowed) > 0 else None
    except (ValueError, ZeroDivisionError):  # "max"
        return None
