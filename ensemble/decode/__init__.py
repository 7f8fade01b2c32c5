"""The decoding loop over sequences."""
