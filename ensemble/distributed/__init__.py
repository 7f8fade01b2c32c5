"""Members in other processes: the weights stay there, and log-probabilities of a few ids are sent.

``remote_member`` is the member and its runner for any token server. ``server_member`` loads members behind servers. On
a Ray cluster, ``ray_worker`` runs where the weights are, ``ray_client`` calls it, and ``ray_member`` starts it.
"""
