"""The number types that a converted file's matrices may have; apart, so that `skyinfer --help` needs no numpy."""

from __future__ import annotations

# name -> general.file_type (LlamaFileType of the gguf package)
OUTTYPES = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}
