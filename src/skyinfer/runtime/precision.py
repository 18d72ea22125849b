"""The names of the precisions that a model can be run in. Imported for every command line: keep it light."""

from __future__ import annotations

EXACT, INT8 = "exact", "int8"
PRECISIONS = (EXACT, INT8)  # csrc/skyinfer.h says what each is
