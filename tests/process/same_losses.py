#!/usr/bin/env python3
"""Runs a program in two worlds and compares the losses that it prints.

    same_losses.py SIMULATED... -- OVER_PROCESSES...

Every line with the word "loss" and a number counts. Both runs must print the
same such lines, as text; in which order, and how many ranks print them, does
not matter.
"""

import re
import subprocess
import sys

LOSS = re.compile(r"\bloss\b.*\d", re.IGNORECASE)


def losses(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n")
        sys.exit(f"{command[-1]} ended with status {done.returncode}")
    found = {" ".join(l.split()) for l in done.stdout.splitlines() if LOSS.search(l)}
    if not found:
        sys.exit(f"{command[-1]} printed no loss:\n{done.stdout}")
    return found


def main():
    words = sys.argv[1:]
    if "--" not in words:
        sys.exit(__doc__)
    middle = words.index("--")
    simulated, processes = losses(words[:middle]), losses(words[middle + 1 :])
    for line in sorted(simulated - processes):
        print(f"only simulated:      {line}")
    for line in sorted(processes - simulated):
        print(f"only over processes: {line}")
    if simulated != processes:
        return 1
    print(f"{len(simulated)} lines with losses, equal in both worlds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
