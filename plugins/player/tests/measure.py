"""Measure a page of `gaitforge view` in Chromium.

python -m gaitforge.plugins.player.tests.measure PAGE
"""

import sys
import time
from pathlib import Path

from gaitforge.plugins.player.tests.browser import browser

PLAY_S = 15.0


def main() -> None:
    path = Path(sys.argv[1]).absolute()
    with browser() as page:
        page.value("location.href")  # the browser has started
        started = time.monotonic()
        page.open(path.as_uri())
        first = time.monotonic() - started
        page.press(" ")
        end, rates = time.monotonic() + PLAY_S, []
        while time.monotonic() < end:
            time.sleep(1.0)
            rates.append(float(page.value("document.body.dataset.rate") or 0))
        quality = page.value("document.body.dataset.quality")
    print(f"{path.stat().st_size / 1e6:.1f} MB, first frame after {first:.2f} s")
    print(f"{PLAY_S:.0f} s of play at 1280 x 800, quality {quality}: {rates} frames/s")


if __name__ == "__main__":
    main()
