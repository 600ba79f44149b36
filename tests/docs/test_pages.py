"""Every block of Python on every page of docs/ runs; both sides of the training loop give the same losses."""

from __future__ import annotations

import doctest
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from pages import DOCS, ROOT, blocks, pages_with_code, program_of, text_of

import gridwise
from gridwise.testing import workers

PAGES = pages_with_code()


def run(page: str, program: str, folder: str) -> None:
    os.chdir(folder)
    with torch.random.fork_rng():
        exec(compile(program, f"docs/{page}.md", "exec"), {"__name__": "page"})


@workers(4, transports=("gloo",))
@pytest.mark.parametrize("page", [page for page, count in PAGES.items() if count == 4])
def test_a_page_runs_on_four_workers(page, tmp_path):
    run(page, program_of(page), str(tmp_path))


@workers(1, transports=("gloo",))
@pytest.mark.parametrize("page", [page for page, count in PAGES.items() if count == 1])
def test_a_page_runs_on_one_worker(page, tmp_path):
    run(page, program_of(page), str(tmp_path))


def test_no_page_asks_for_another_number_of_workers():
    assert set(PAGES.values()) <= {1, 4}
    assert len(PAGES) > 12


@pytest.mark.parametrize("page", [path.stem for path in sorted(DOCS.glob("*.md")) if ">>> " in path.read_text()])
def test_what_is_typed_at_a_prompt_runs(page):
    found = doctest.testfile(str(DOCS / f"{page}.md"), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert (found.failed, found.attempted > 0) == (0, True)


# ---- the training loop ----------------------------------------------------------------------------------------------
def sides() -> tuple[str, str]:
    """The plain loop and the other one, out of the difference on the page."""
    (text,) = blocks("training-loop", "diff")
    lines = [(line[:1], line[1:]) for line in text.splitlines()]
    plain, ours = ("\n".join(line for mark, line in lines if mark in ("", " ", kept)) for kept in ("-", "+"))
    return plain, ours


def losses_of(program: str) -> list[float]:
    def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
        source = torch.Generator().manual_seed(1)
        return [tuple(torch.randn(2, 3, 11, 9, generator=source) for _ in range(2)) for _ in range(4)]

    names = {"batches": batches}
    exec(compile(program, "docs/training-loop.md", "exec"), names)
    return names["losses"]


@workers(4, transports=("gloo",))
def test_both_sides_of_the_training_loop_give_the_same_losses():
    plain, ours = sides()
    expected = losses_of(plain)
    assert len(expected) == 4
    np.testing.assert_allclose(losses_of(ours), expected, rtol=1e-4)


def test_the_training_loop_changes_few_lines():
    (text,) = blocks("training-loop", "diff")
    assert sum(line.startswith(("+", "-")) for line in text.splitlines()) <= 8


# ---- what is shown but not run --------------------------------------------------------------------------------------
def test_slurm_files_are_shell_and_use_variables_of_slurm():
    import subprocess

    for path in sorted((ROOT / "examples" / "slurm").glob("*.sbatch")):
        assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
        variables = set(re.findall(r"\$\{?(SLURM_\w+)", path.read_text()))
        assert variables <= {
            "SLURM_SUBMIT_DIR",
            "SLURM_CPUS_PER_TASK",
            "SLURM_JOB_NODELIST",
            "SLURM_NNODES",
            "SLURM_JOB_ID",
        }
        assert path.name in text_of("launching")


def test_every_variable_of_the_environment_is_in_the_table_and_no_other():
    read = set()
    for path in Path(str(gridwise.__file__)).parent.rglob("*.py"):
        read |= set(re.findall(r"\"(GRIDWISE_[A-Z_]+)\"", path.read_text(encoding="utf-8")))
    inner = {"GRIDWISE_JOB", "GRIDWISE_POOL", "GRIDWISE_NOTEBOOK", "GRIDWISE_FOLDER", "GRIDWISE_COMPAT"}
    shown = set(re.findall(r"^\| `(GRIDWISE_\w+)` \|", text_of("launching"), re.MULTILINE))
    assert shown <= read
    assert sorted(read - shown - inner) == []


# ---- how code looks on the site -------------------------------------------------------------------------------------
COLUMNS = 88
"""What the column of a page shows without scrolling."""


def code_on(text: str) -> list[str]:
    """The lines of code on a page, without what programs print (`text`): fenced, or indented after an empty line."""
    lines, fence, is_code, before = [], "", False, ""
    for line in text.splitlines():
        if line.startswith("```"):
            fence = "" if fence else line
        elif fence:
            lines += [line] if not fence.startswith(("```text", "```{include}")) else []
        else:
            is_code = line.startswith("    ") and (is_code or not before)
            lines += [line] if is_code else []
        before = line
    return lines


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "benchmarks" / "README.md"])
def test_code_fits_into_the_column(page):
    assert [line for line in code_on(page.read_text(encoding="utf-8")) if len(line) > COLUMNS] == []


def test_what_is_code_on_a_page():
    text = "words\n\n    indented\n\n- a point\n    of a list\n\n```python\nfenced\n```\n\n```text\nprinted\n```\n"
    assert code_on(text) == ["    indented", "fenced"]
