"""Level 2: one forward pass on the drone request's tokens, without text."""

from __future__ import annotations

from typing import Any

import pytest
from requests_of import forward

import skyinfer
from skyinfer.runtime.cpus import available_cpus


@pytest.mark.parametrize("threads", [1, 2])
def test_forward(benchmark: Any, model: skyinfer.Model, threads: int) -> None:
    if threads > available_cpus():
        pytest.skip("threads that share a CPU only wait for each other")
    plan, asks = forward(model, threads)
    benchmark(plan.run, asks)
    assert plan.threads == threads
