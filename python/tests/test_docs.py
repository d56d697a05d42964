"""The programs in the documentation run."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_there_are_programs():
    assert PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_program_runs(program, capsys):
    exec(compile(program, str(PAGE), "exec"), {})
    # Each prints the layouts that it has made.
    assert re.search(r"Replicate\(\)|dim=0", capsys.readouterr().out)
