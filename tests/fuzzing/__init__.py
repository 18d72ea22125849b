"""The rooms of tests/fuzz.py.

files.py and requests.py make inputs and judge what comes of them; mutation.py, specimens.py and gguf_pieces.py damage
what bases.py gives; checks.py says what must hold; watchdog.py runs it all.
"""
