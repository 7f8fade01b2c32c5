"""How fast the decoder is: ``python -m benchmarks.NAME``, and ``--json`` for one JSON object of ratios.

Ratios are taken within one run, between parts that take turns, so that they hold on a machine of any speed.
"""
