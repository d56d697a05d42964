#!/usr/bin/env python3
"""Runs the pinned clang-tidy over sources of the library.

    scripts/tidy.py [--build DIR] [--jobs N] [--since REV] [LAYER | FILE ...]

With no argument all of src/ is checked; a layer (core, plan, ...) or files limit
it, and so does --since, to what has changed since a revision. Takes the compile
commands of a configured build, less what only GCC knows.
A source that has passed is not checked again until it, a header of ours or the
configuration changes.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def tidy_program():
    local = ROOT / ".venv" / "bin" / "clang-tidy"
    return str(local) if local.exists() else "clang-tidy"


def by_source(commands):
    """One entry a source; a build may compile several of a layer at a time."""
    entries = {}
    for entry in commands:
        path = pathlib.Path(entry["file"])
        if path.parent.name != "Unity":
            entries[path.resolve()] = entry
            continue
        for name in re.findall(r'#include "(.*)"', path.read_text()):
            source = pathlib.Path(name).resolve()
            command = entry["command"].replace(str(path), str(source))
            entries[source] = {
                **entry, "file": str(source), "command": command}
    return entries


def clang_command(entry):
    """The compiler's arguments, less launcher, precompiled header, warnings
    and OpenMP, whose header is GCC's own."""
    words = shlex.split(entry["command"])
    compiler = next(
        i for i, w in enumerate(words) if w.endswith(("++", "clang", "gcc"))
        and "=" not in w
    )
    kept, skip = [], False
    for word, following in zip(words[compiler:], words[compiler + 1 :] + [""]):
        if skip:
            skip = False
        elif word == "-include" and "cmake_pch" in following:
            skip = True
        elif (word not in ("-fpch-preprocess", "-fopenmp")
              and not word.startswith("-W")):
            kept.append(word)
    return shlex.join(kept)


def digest(paths):
    sha = hashlib.sha256()
    for path in paths:
        sha.update(str(path).encode())
        sha.update(path.read_bytes())
    return sha.hexdigest()


def selected(names, since):
    sources = sorted((ROOT / "src").glob("**/*.cpp"))
    if since:
        changed = subprocess.run(
            ["git", "diff", "--name-only", since, "--", "src"],
            cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
        sources = [s for s in sources if str(s.relative_to(ROOT)) in changed]
    if not names:
        return sources
    chosen = {(ROOT / name).resolve() for name in names}
    return [
        s for s in sources
        if s in chosen or s.relative_to(ROOT / "src").parts[0] in names
    ]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--build", default=ROOT / "build" / "dev")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--since", metavar="REV")
    parser.add_argument("what", nargs="*")
    args = parser.parse_args()

    build = pathlib.Path(args.build).resolve()
    commands = json.loads((build / "compile_commands.json").read_text())
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    wanted = selected(args.what, args.since)
    known = by_source(commands)
    # A source that this build leaves out (no_gloo.cpp) has no command.
    sources = [source for source in wanted if source in known]
    entries = [
        {**known[source], "command": clang_command(known[source])}
        for source in sources
    ]
    (folder / "compile_commands.json").write_text(json.dumps(entries))
    headers = sorted(ROOT.glob("include/tessera/*.h")) + sorted(
        ROOT.glob("src/**/*.h")
    )
    common = digest([ROOT / ".clang-tidy", *headers])

    def check(source):
        stamp = folder / f"{source.parent.name}_{source.stem}.passed"
        state = common + digest([source])
        if stamp.exists() and stamp.read_text() == state:
            return source, True, ""
        done = subprocess.run(
            [tidy_program(), "--quiet", "-p", str(folder), str(source)],
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            stamp.write_text(state)
        return source, done.returncode == 0, done.stdout or done.stderr

    if not sources:
        where = " ".join(args.what) or "src"
        print(f"tidy: nothing to check in {where}", file=sys.stderr)
        return 0 if args.since else 1
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for source, passed, text in pool.map(check, sources):
            if not passed:
                failed += 1
                print(f"{source.relative_to(ROOT)}:\n{text}", flush=True)
    print(f"tidy: {len(sources)} files, {failed} with complaints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
