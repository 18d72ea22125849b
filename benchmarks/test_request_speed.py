"""Level 3: a whole call, from a state and questions to answers."""

from __future__ import annotations

from typing import Any

from requests_of import DRONE

import skyinfer


def test_decide(benchmark: Any, model: skyinfer.Model) -> None:
    benchmark(model.decide, DRONE["state"], DRONE["questions"])


def test_encode(benchmark: Any, model: skyinfer.Model) -> None:
    benchmark(model.encode, DRONE["state"], DRONE["questions"])
