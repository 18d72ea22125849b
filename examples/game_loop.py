"""A compiled question set in a game loop: a model flies a drone for a minute and answers all questions in every frame.

python examples/game_loop.py [MODEL]        (default: s1-pico)
"""

import gc
import sys
import time

import skyinfer
from skyinfer.games.flappy import FRAMES_PER_SECOND, QUESTIONS, Flappy

model = skyinfer.load(sys.argv[1] if len(sys.argv) > 1 else None)
compiled = model.compile(QUESTIONS)  # tokenized once; keep one for each thread
options = dict(zip(compiled.ids, zip(compiled.offsets, compiled.offsets[1:], strict=False), strict=False))
action, danger = slice(*options["action"]), options["danger"][0] + 1  # of danger's (false, true) the second

game = Flappy(seed=1, difficulty="easy")
compiled.step(game.state_text())  # the first call sets up its buffers
gc.collect()
gc.freeze()  # what is loaded by now is not scanned again, so no frame waits for that

frames, slowest, warnings = 0, 0.0, 0
while game.alive and frames < 60 * FRAMES_PER_SECOND:
    begin = time.perf_counter()
    p = compiled.step(game.state_text())  # every option's probability, in an array that each step writes anew
    thrust, glide = p[action]
    warnings += bool(p[danger] > 0.5)
    game.step(thrust=bool(thrust > glide))
    frames, slowest = frames + 1, max(slowest, time.perf_counter() - begin)

print(f"{frames} frames, {game.score} gaps, {warnings} warnings, slowest frame {1000 * slowest:.2f} ms")
