"""The largest models that are read. docs/formats.md lists them; what a file says beyond them is a FormatError."""

from __future__ import annotations

MAX_BLOCKS = 1024  # encoder and decision blocks together
MAX_D_MODEL = 1 << 16
MAX_D_HEAD = 512  # width of one attention head: SKY_MAX_D_HEAD of the core
MAX_D_FF = 1 << 20
MAX_VOCAB = 1 << 24
MAX_TOKENS = 1 << 17  # of a sequence
MAX_TEXT_BYTES = 256 << 20  # of a JSON file in a checkpoint
