"""`skyinfer serve`: POST /v1/systemone over HTTP, for any client of the System One API.

    options.py     the command line of the server: every limit and its default
    catalog.py     the models that are served, by name
    exchange.py    one request until it is answered: headers, body, what is logged of it
    compression.py compressed bodies
    parsing.py     from the bytes of a body to what a model has to run, or to a refusal
    parsing_pool.py    threads for parsing, in which short jobs pass long ones
    scheduling.py  where a forward pass runs: at once in the event loop, or in a thread that merges waiting requests
    app.py         the ASGI application: routes, keys, answers
    binding.py     the sockets that a server listens on
    listener.py    HTTP: connections, their timeouts, signals (uvicorn)
    refusals.py    every error response, in either style
    request_log.py metrics.py openapi.py     one JSON line per request; Prometheus; the OpenAPI description

Needs the extra `skyinfer[serve]`; nothing here is imported before a server starts.
"""
