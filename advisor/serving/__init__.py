"""An ensemble behind an OpenAI-compatible HTTP endpoint: ``advisor serve``.

- ``protocol`` turns what a client sends into an :class:`~advisor.serving.order.Order`, or says what is wrong with it;
- ``engine`` is the one thread that decodes; what arrives together is decoded as one batch;
- ``answers`` turns what it emits into what the client expects;
- ``app``, ``guard``, ``metrics`` and ``server`` are the edge: HTTP, keys, figures, signals.
"""
