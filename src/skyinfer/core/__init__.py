"""The compiled parts: the border to the C core, its kernels for tests, and scanners of long texts in files."""
