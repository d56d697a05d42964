#!/usr/bin/env python3
"""The layer check itself: a planted wrong include is caught, a right one not."""

import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import check_layers  # noqa: E402


def complaints(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return list(check_layers.check_tree(folder))


class CheckLayers(unittest.TestCase):
    def caught(self, name, text, expected):
        found = complaints({name: text})
        self.assertEqual(len(found), 1, found)
        self.assertIn(expected, found[0])
        self.assertIn(f"{name}:1:", found[0])

    def allowed(self, name, text):
        self.assertEqual(complaints({name: text}), [])

    def test_every_include_that_points_up_is_caught(self):
        layers = check_layers.BELOW
        pairs = 0
        for layer, below in layers.items():
            for target in layers:
                text = f'#include "{target}/x.h"\n'
                if target == layer or target in below:
                    self.allowed(f"src/{layer}/a.cpp", text)
                else:
                    pairs += 1
                    self.caught(f"src/{layer}/a.cpp", text, f"{target}/x.h")
        self.assertGreater(pairs, 20)

    def test_below_is_transitive_and_has_no_cycle(self):
        for layer, below in check_layers.BELOW.items():
            self.assertNotIn(layer, below)
            for lower in below:
                self.assertLessEqual(check_layers.BELOW[lower], below)

    def test_public_headers_have_layers(self):
        self.allowed("src/core/a.cpp", '#include "tessera/mesh.h"\n')
        self.caught("src/core/a.h", '#include "tessera/world.h"\n', "comm/")
        self.caught("src/plan/a.cpp", '#include "tessera/debug.h"\n', "api/")
        self.caught(
            "include/tessera/spec.h", '#include "tessera/rule.h"\n', "rules/"
        )
        self.allowed("include/tessera/tessera.h", '#include "tessera/rule.h"\n')

    def test_dispatch_keys_stay_in_dispatch(self):
        key = "auto k = c10::DispatchKey::CPU;\n"
        self.allowed("src/dispatch/a.cpp", key)
        self.caught("src/api/a.cpp", key, "dispatch keys")
        self.caught("src/rules/a.cpp", "TORCH_LIBRARY(x, m) {}\n", "keys")
        self.allowed("src/api/a.cpp", "// no DispatchKey::CPU here\n")

    def test_c10d_stays_in_comm(self):
        text = "#include <torch/csrc/distributed/c10d/Store.hpp>\n"
        self.allowed("src/comm/a.cpp", text)
        self.caught("src/dispatch/a.cpp", text, "c10d")
        self.caught("include/tessera/world2.h", text, "c10d")

    def test_all_of_torch_is_caught(self):
        text = "#include <torch/torch.h>\n"
        self.caught("include/tessera/mesh.h", text, "torch/torch.h")
        self.caught("src/api/a.cpp", text, "torch/torch.h")

    def test_unknown_folder_is_caught(self):
        found = complaints({"src/utils/a.cpp": ""})
        self.assertEqual(len(found), 1, found)
        self.assertIn("is no layer", found[0])


if __name__ == "__main__":
    unittest.main()
