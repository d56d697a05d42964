"""The README's program is examples/hello.cpp, and prints what the README says.

usage: check_readme.py README.md hello.cpp path/to/hello
"""

import re
import subprocess
import sys


def block_after(text: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    if found is None:
        sys.exit(f"README has no ```{language} block")
    return found.group(1)


def check(what: str, told: str, real: str) -> None:
    if told.strip() != real.strip():
        sys.exit(f"the README's {what} is\n{told}\nbut really\n{real}")


def main() -> None:
    readme, source, program = sys.argv[1:]
    with open(readme, encoding="utf-8") as file:
        text = file.read()
    with open(source, encoding="utf-8") as file:
        check("program", block_after(text, "cpp"), file.read())
    printed = subprocess.run(
        [program], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    check("output", block_after(text, "text"), printed)
    lines = text.count("\n")
    if lines > 120:
        sys.exit(f"the README has {lines} lines; 120 at most")


if __name__ == "__main__":
    main()
