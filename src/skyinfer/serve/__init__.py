"""`skyinfer serve`: POST /v1/systemone over HTTP, for any client of the System One API.

    options.py     the command line of the server: every limit and its default
    catalog.py     the models that are served, by name
    asking.py      from the bytes of a body to what a model has to run, or to a refusal
    deciding.py    where a forward pass runs: at once in the event loop, or in a thread that merges what waits
    app.py         the ASGI application: routes, keys, answers
    listener.py    HTTP: connections, their deadlines, signals (uvicorn)
    refusals.py    every error answer, in either style
    journal.py metrics.py openapi.py     one JSON line a request; Prometheus; the description

Needs the extra `skyinfer[serve]`; nothing here is imported before a server starts.
"""
