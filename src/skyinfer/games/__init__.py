"""Flappy Drone, a game whose rules are in C; pilots for it; and what makes the model that comes with skyinfer.

flappy     the game, and the questions that a model is asked about it
pilots     what gives the input: the look-ahead teacher, random numbers, or a model
play       the terminal that `skyinfer play` shows (extra `skyinfer[play]`), and its table without one
judging    how well a model plays
s1_pico    data and training of s1-pico (extra `skyinfer[train]`); s2_pico: the same for s2-pico
"""
