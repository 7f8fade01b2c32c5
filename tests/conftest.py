"""Settings of the test run itself."""

from __future__ import annotations

import gc

# A test process holds millions of objects of its libraries. To visit all of them for garbage as often as Python does by
# default takes a fifth of its time.
gc.set_threshold(50_000, 20, 50)
