"""Members on nodes of their own: weights and contexts stay there, and a step sends top candidates and asked-for logits.

``node`` runs where the weights are, ``link`` is this process's end of the line, ``site`` keeps a batch of contexts over
it, ``member`` is what an ensemble takes. What crosses the network is in ``wire``.
"""
