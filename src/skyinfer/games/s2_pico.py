"""Makes s2-pico, the model of architecture s2 that comes with skyinfer, by the recipe of s1-pico (s1_pico.py).

python -m skyinfer.games.s2_pico -o DIR
"""

from __future__ import annotations

import sys

from .s1_pico import Recipe, main

RECIPE = Recipe(architecture="s2")

if __name__ == "__main__":
    sys.exit(main(default=RECIPE))
