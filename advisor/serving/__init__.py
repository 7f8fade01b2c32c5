"""An ensemble or a strategy behind an OpenAI-compatible HTTP endpoint: ``advisor serve``.

A request passes through these modules:

- ``connections``: deadlines for what a client sends, and the number of connections;
- ``app``: the endpoints; ``middleware`` checks the host, the API key and the body's size before them;
- ``protocol``: checks the body and makes a :class:`~advisor.serving.protocol.GenerationRequest` of it;
- ``engine``: the one thread that runs the decoder; all requests share its batch;
- ``strategies``: the engine of a strategy, which asks several models for each text;
- ``responses``: writes the generated texts as OpenAI's JSON objects;
- ``server``, ``starting``, ``log`` and ``metrics``: the process, how it starts, its log, its figures for Prometheus.
"""
