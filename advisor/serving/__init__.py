"""An ensemble behind an OpenAI-compatible HTTP endpoint: ``advisor serve``.

A request passes through these modules:

- ``app``: the endpoints; ``middleware`` checks the API key and the body's size before them;
- ``protocol``: checks the body and makes a :class:`~advisor.serving.protocol.GenerationRequest` of it;
- ``engine``: the one thread that runs the decoder; all requests share its batch;
- ``responses``: writes the generated texts as OpenAI's JSON objects;
- ``server``, ``starting`` and ``metrics``: the process, how it starts, and its figures for Prometheus.
"""
