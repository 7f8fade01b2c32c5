"""Members in other processes: the weights and the rows of tokens stay there, top candidates and some logits are sent.

``ray_worker`` runs where the weights are. In this process, ``ray_client`` sends it requests and retries them,
``ray_runner`` runs a batch on it, and ``ray_member`` starts it. ``ray_messages`` packs what crosses the network.
"""
