"""Draw the pictures of docs/concepts.md from the loop's own step records, and fill in what docs/ says of figures.

`python -m examples.concepts` rewrites docs/pictures/ and the made blocks of the pages; with names of scenes it only
prints their tables.  Time is virtual: it takes a second.
"""

from __future__ import annotations

import argparse

from examples.concepts.pages import files, table
from examples.concepts.scenes import SCENES


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.concepts")
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"{', '.join(SCENES)}")
    chosen = parser.parse_args().scenes
    if unknown := set(chosen) - set(SCENES):
        parser.error(f"no such scene: {', '.join(sorted(unknown))}; there are {', '.join(SCENES)}")
    for name in chosen:
        print(table(SCENES[name]().table))
    if not chosen:
        for path, text in files().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(path)


if __name__ == "__main__":
    main()
