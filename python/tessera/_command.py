"""The command tessera-checkpoint of a package that pip has installed."""

import os
import pathlib
import sys


def main() -> None:
    """Becomes the program that lies in the package."""
    program = pathlib.Path(__file__).with_name("bin") / "tessera-checkpoint"
    os.execv(program, [str(program), *sys.argv[1:]])
