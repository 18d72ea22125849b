"""`python -m skyinfer` is the command `skyinfer`."""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())
