"""The programs that docs/how_to.md shows are those of examples/.

usage: check_how_to.py docs/how_to.md examples

A block of C++ or Python that follows a line with the name of an example is part of
that example, line by line.
"""

import pathlib
import re
import sys

NAMED = re.compile(
    r"`examples/([\w.]+)`\)?:\n\n```(?:cpp|python)\n(.*?)```", re.DOTALL
)


def main() -> None:
    page, examples = map(pathlib.Path, sys.argv[1:])
    blocks = NAMED.findall(page.read_text(encoding="utf-8"))
    if len(blocks) < 3:
        sys.exit(f"{page} shows {len(blocks)} parts of examples; 3 at least")
    for name, block in blocks:
        if block not in (examples / name).read_text(encoding="utf-8"):
            sys.exit(f"{page} shows as part of examples/{name}:\n{block}")


if __name__ == "__main__":
    main()
