#!/usr/bin/env python3
"""Runs the pinned clang-tidy over sources of the library.

    scripts/tidy.py [--build DIR] [--jobs N] [LAYER | FILE ...]

With no argument all of src/ is checked; a layer (core, plan, ...) or files limit
it. Takes the compile commands of a configured build, less what only GCC knows.
A source that has passed is not checked again until it, a header of ours or the
configuration changes.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def tidy_program():
    local = ROOT / ".venv" / "bin" / "clang-tidy"
    return str(local) if local.exists() else "clang-tidy"


def clang_command(entry):
    """The compiler's arguments, less launcher, precompiled header, warnings."""
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
        elif word != "-fpch-preprocess" and not word.startswith("-W"):
            kept.append(word)
    return shlex.join(kept)


def digest(paths):
    sha = hashlib.sha256()
    for path in paths:
        sha.update(str(path).encode())
        sha.update(path.read_bytes())
    return sha.hexdigest()


def selected(names):
    sources = sorted((ROOT / "src").glob("*/*.cpp"))
    if not names:
        return sources
    chosen = {(ROOT / name).resolve() for name in names}
    return [s for s in sources if s in chosen or s.parent.name in names]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--build", default=ROOT / "build" / "dev")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("what", nargs="*")
    args = parser.parse_args()

    build = pathlib.Path(args.build).resolve()
    commands = json.loads((build / "compile_commands.json").read_text())
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    wanted = set(selected(args.what))
    entries = [
        {**e, "command": clang_command(e)}
        for e in commands
        if pathlib.Path(e["file"]).resolve() in wanted
    ]
    (folder / "compile_commands.json").write_text(json.dumps(entries))
    headers = sorted(ROOT.glob("include/tessera/*.h")) + sorted(
        ROOT.glob("src/*/*.h")
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

    # A source that this build leaves out (no_gloo.cpp) has no command.
    sources = sorted({pathlib.Path(e["file"]).resolve() for e in entries})
    if not sources:
        print(f"tidy: nothing to check in {args.what or 'src'}", file=sys.stderr)
        return 1
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
