"""`python -m skyinfer` is the command `skyinfer`."""

from __future__ import annotations

import sys

from .command.main import main

sys.exit(main())
