"""Hunt down a bubble and preemptions on a real daemon, and fill in what docs/profiling.md shows of it.

`python -m examples.hunts` rewrites the made blocks of the page and docs/pictures/hunts/; it needs the small model and a
minute.  With names of hunts it only prints what it does; recordings and pictures are then in a folder of its own.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from examples.concepts.pages import DOCS, filled
from examples.hunts.hunts import HUNTS

PAGE = DOCS / "profiling.md"
PICTURES = DOCS / "pictures" / "hunts"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.hunts")
    parser.add_argument("hunts", nargs="*", metavar="HUNT", help=", ".join(HUNTS))
    chosen = parser.parse_args().hunts
    if unknown := set(chosen) - set(HUNTS):
        parser.error(f"no such hunt: {', '.join(sorted(unknown))}; there are {', '.join(HUNTS)}")
    folder = Path(tempfile.mkdtemp(prefix="inflightd-hunts-"))
    blocks: dict[str, str] = {}
    for name in chosen or HUNTS:
        blocks |= HUNTS[name](folder).blocks
    if chosen:
        for text in blocks.values():
            print(f"\n{text}")
        print(f"\nin {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
        return
    PAGE.write_text(filled(PAGE.read_text(), blocks))
    PICTURES.mkdir(parents=True, exist_ok=True)
    for picture in folder.glob("*.png"):
        shutil.copy(picture, PICTURES)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
