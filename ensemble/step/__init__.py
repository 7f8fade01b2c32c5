"""One step of decoding: distributions, gates, sampling, log-probabilities and traces."""
