"""Draws the pictures of the documentation from reports: ``python -m tests.pictures`` writes ``docs/*.png``.

It runs the demo and the example of logs, and opens their reports in Chromium.
"""

from __future__ import annotations

import base64
import io
import re
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks._measure import run_advisor

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
COLOURS = 128
"""Of a picture: the pages are drawn with few, and a file with more is several times as large."""
STEP = "[...document.querySelectorAll('.strip .token')].findLast((one) => one.querySelector('.against')).click()"
PLACE = "const box = document.querySelector('.strip').getBoundingClientRect(); return [box.left, box.top + scrollY]"


def main() -> None:
    """Draw all pictures."""
    sys.path.insert(0, str(Path(__file__).parent))
    from report_browser import browser, open_report, prefer, resize

    logs = (DOCS / "how-to" / "logs.md").read_text(encoding="utf-8")
    example = re.search(r"advisor (select --logs \.\./shared/\S+) --out \S+ (--only \\\n\s*\S+)", logs)
    if example is None:
        sys.exit(f"{DOCS}/how-to/logs.md: no example of logs; name the log and the models in it")
    with tempfile.TemporaryDirectory() as folder, browser() as window:
        demo, math = Path(folder) / "demo", Path(folder) / "math-l5"
        run_advisor(["select", "--pool", "demo", "--task", "word_problems", "--out", str(demo), "--quiet"])
        run_advisor([*shlex.split(" ".join(example.groups()).replace("\\\n", " ")), "--out", str(math), "--quiet"])
        prefer(window, "light")
        for report, name, width, height in ((demo, "report", 1200, 1560), (math, "logs", 1000, 1170)):
            resize(window, width)
            open_report(window, report / "report.html", folded=True)
            save(window, name, 0, 0, width, height)
        # The first example with a trace, at the last step at which a member would have chosen another token.
        resize(window, 950)
        open_report(window, demo / "report.html")
        window.execute_script("document.querySelector('[data-filter=traced]').click()")
        window.execute_script("document.querySelector('#explorer .example:not([hidden])').open = true")
        window.execute_async_script("setTimeout(arguments[0], 200)")
        window.execute_script(STEP)
        left, top = window.execute_script(PLACE)
        save(window, "step", left - 10, top - 45, 773, 539)


def save(window: Any, name: str, x: float, y: float, width: int, height: int) -> None:
    """Save a part of the page that is open as a picture with few colours."""
    clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
    shot = window.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    few = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(DOCS / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
