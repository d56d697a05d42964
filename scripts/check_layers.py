#!/usr/bin/env python3
"""Fails when an include points up the layers, or a private door is used.

    scripts/check_layers.py [ROOT]

- A file of src/<layer> includes only its own layer and those below it:
  core <- rules <- plan, core <- kernels <- comm; dispatch stands on all of
  these, ops and embedding each on dispatch, api on both.
- Public headers belong to layers too, and reach no higher than their layer.
- Only dispatch/ names a dispatch key or registers a library.
- Only comm/ includes c10d.
- No public header, and no source of the library, includes all of torch.
"""

import pathlib
import re
import sys

BELOW = {
    "core": set(),
    "kernels": {"core"},
    "rules": {"core"},
    "plan": {"core", "rules"},
    "comm": {"core", "kernels"},
    "dispatch": {"core", "kernels", "rules", "plan", "comm"},
    "ops": {"core", "kernels", "rules", "plan", "comm", "dispatch"},
    "embedding": {"core", "kernels", "rules", "plan", "comm", "dispatch"},
    "api": {
        "core",
        "kernels",
        "rules",
        "plan",
        "comm",
        "dispatch",
        "ops",
        "embedding",
    },
}

# The layer that implements each header of include/tessera. A header that is not
# named here is taken to be the user's view, at the top.
PUBLIC = {
    "export.h": "core",
    "placement.h": "core",
    "language.h": "core",
    "mesh.h": "core",
    "spec.h": "core",
    "shard_math.h": "core",
    "checked_sizes.h": "rules",
    "rule.h": "rules",
    "world.h": "comm",
    "blocking.h": "comm",
    "process_group.h": "comm",
    "dtensor.h": "dispatch",
    "embedding.h": "dispatch",
    "scopes.h": "api",
    "sharded.h": "api",
}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
KEY = re.compile(
    r"\bDispatchKey(Set)?\s*(::|\(|\{)|\bTORCH_LIBRARY(_IMPL|_FRAGMENT)?\b"
)
C10D = re.compile(r"^torch/csrc/distributed/|^gloo/")
ALL_OF_TORCH = {"torch/torch.h", "torch/all.h", "torch/extension.h"}


def target_layer(include):
    """The layer that an include names, or None for a header of others."""
    parts = include.split("/")
    if parts[0] == "tessera" and len(parts) == 2:
        return PUBLIC.get(parts[1], "api")
    if len(parts) > 1 and parts[0] in BELOW:
        return parts[0]
    return None


def check_file(name, layer, lines):
    """Complaints about one file that belongs to `layer`."""
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        code = line.split("//")[0]
        match = INCLUDE.match(line)
        if match:
            include = match.group(1)
            target = target_layer(include)
            if target and target != layer and target not in BELOW[layer]:
                yield f"{where}: {layer}/ must not include {target}/: {include}"
            if C10D.match(include) and layer != "comm":
                yield f"{where}: only comm/ may include c10d: {include}"
            if include in ALL_OF_TORCH:
                yield f"{where}: include what is needed, not {include}"
        elif KEY.search(code) and layer != "dispatch":
            yield f"{where}: only dispatch/ names dispatch keys: {code.strip()}"


def check_tree(root):
    root = pathlib.Path(root)
    files = [
        (path, PUBLIC.get(path.name, "api"))
        for path in sorted((root / "include" / "tessera").glob("*.h"))
    ]
    for path in sorted((root / "src").glob("*/**/*")):
        if path.suffix not in (".h", ".cpp", ".cu", ".cuh"):
            continue
        # A layer may have sub-folders.
        layer = path.relative_to(root / "src").parts[0]
        if layer not in BELOW:
            yield f"{path.relative_to(root)}: src/{layer} is no layer"
            continue
        files.append((path, layer))
    for path, layer in files:
        lines = path.read_text(encoding="utf-8").splitlines()
        yield from check_file(path.relative_to(root), layer, lines)


def main():
    default = pathlib.Path(__file__).resolve().parent.parent
    complaints = list(check_tree(sys.argv[1] if len(sys.argv) > 1 else default))
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
