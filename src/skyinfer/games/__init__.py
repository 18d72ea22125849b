"""Games whose rules are in C, what flies them, and the making of the model that comes with skyinfer.

flappy     Flappy Drone, and the questions that a model is asked about it
pilots     who decides: the look-ahead teacher, chance, or a model
play       the terminal that `skyinfer play` shows (extra `skyinfer[play]`), and its table without one
s1_pico    data, training and judging of s1-pico (extra `skyinfer[train]`)
"""
