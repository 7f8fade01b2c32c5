"""Studies of pools, methods and advice: ``python -m benchmarks.studies.NAME``.

The coefficients that the product ships are fitted here.
"""
