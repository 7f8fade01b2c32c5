"""What real models say: ``python -m benchmarks.pools``, which is `benchmarks.studies.pools`."""

from __future__ import annotations

import sys

from benchmarks.studies.pools import main

if __name__ == "__main__":
    sys.exit(main())
