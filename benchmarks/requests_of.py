"""The request that every level above the kernels is timed on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DRONE: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "examples" / "request.json").read_text(encoding="utf-8")
)
