"""The programs in the documentation run."""

import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PROGRAMS = [
    pytest.param(program, id=f"{page.stem}-{i}")
    for page in sorted(DOCS.glob("*.md"))
    for i, program in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    )
]


def test_there_are_programs():
    assert len(PROGRAMS) > 4


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_runs(program, capsys):
    exec(compile(program, "docs", "exec"), {})
    # Each prints what it has made: a layout, or the world.
    assert re.search(r"Replicate\(\)|dim=0|S\(0\)|P\(sum\)|World\(", capsys.readouterr().out)
