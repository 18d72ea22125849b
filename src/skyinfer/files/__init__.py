"""Model files: GGUF, safetensors and checkpoint directories, read, checked, converted and described."""
