"""An ensemble or a strategy behind an OpenAI-compatible HTTP endpoint: ``advisor serve``.

A request passes through these modules:

- ``app``: the endpoints; ``server.RequestMiddleware`` checks the host, the API key and the body's size before them;
- ``protocol``: checks the body and makes a :class:`~advisor.serving.request.GenerationRequest` of it, which goes to the
  decoder and carries the texts back;
- ``engine``: the thread that tokenizes prompts, and the one that runs the decoder; all requests share its batch;
- ``strategy_handler``: the engine of a strategy, which asks several models for each text;
- ``token_prompts``: requests with token ids, where the server has one model and may be a member of another ensemble;
- ``responses``: writes the generated texts as OpenAI's JSON objects;
- ``metrics``: figures for Prometheus;
- ``server`` and ``starting``: the process and its log, how it starts.
"""
