"""The script that runs the benchmarks: one that fails does not hide the others."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parents[1] / "benchmarks" / "run.py"


def run(folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(RUN, folder)
    shutil.copytree(RUN.parent / "plots", folder / "plots", dirs_exist_ok=True)
    (folder / "a_bad.py").write_text("raise SystemExit(3)")
    (folder / "b_good.py").write_text("print('measured')")
    (folder / "d_device.py").write_text("print('nothing to measure'); raise SystemExit(77)")
    return subprocess.run([sys.executable, str(folder / RUN.name), *names], capture_output=True, text=True, check=False)


def test_a_failing_benchmark_is_named_after_all_have_run(tmp_path):
    done = run(tmp_path)
    assert done.returncode != 0
    assert "measured" in done.stdout
    assert done.stderr.strip() == "failed: a_bad"


def test_benchmarks_by_name(tmp_path):
    assert run(tmp_path, "b_good").returncode == 0
    unknown = run(tmp_path, "b_good", "c_none")
    assert unknown.returncode != 0
    assert "no benchmark c_none; there are a_bad, b_good, d_device" in unknown.stderr
    assert "measured" not in unknown.stdout


def test_figures_are_written_into_the_page(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(
        "# Benchmarks\n\nfirst\n\n<!-- figures of b_good -->\nof an old version\n<!-- end of b_good -->\n\nlast\n"
    )
    assert run(tmp_path, "b_good").returncode == 0
    assert "of an old version" in page.read_text(), "only if it is asked for"
    assert run(tmp_path, "--write").returncode != 0
    text = page.read_text()
    assert "of an old version" not in text
    assert "a_bad" not in text, "nothing is written of one that fails"
    assert "d_device" not in text, "nor of one that has nothing to measure"
    before, figures, after = text.partition("```text\nmeasured\n```\n<!-- end of b_good -->")
    assert before.startswith("# Benchmarks\n\nfirst\n\n<!-- figures of b_good -->\n")
    assert "`python benchmarks/b_good.py`: " in before
    assert " cores (" in before
    assert figures
    assert after == "\n\nlast\n"


def test_every_benchmark_has_one_section_with_words_and_then_its_figures():
    page = (RUN.parent / "README.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^##+ (?=.*\.py`\)$)", page, flags=re.MULTILINE)
    names = [re.findall(r"\(`(\w+)\.py`\)", section)[0] for section in sections]
    assert sorted(names) == sorted(path.stem for path in RUN.parent.glob("*.py") if path != RUN)
    for name, section in zip(names, sections, strict=True):
        form = rf".*?\n\n(?P<words>\S.*)\n\n<!-- figures of {name} -->\n.*<!-- end of {name} -->\s*"
        found = re.fullmatch(form, section, flags=re.DOTALL)
        assert found, f"{name}: say what is compared with what, and then nothing but its figures between their marks"
        assert section.count("<!-- ") == 2, f"{name}: figures of something else"


IMPORT_EACH = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name.split(".")[0] in ("h5py", "mlxtend", "sklearn", "zarr"), f"{name}: {error}"
"""


def test_benchmarks_find_what_they_import_from_the_package():
    names = sorted(path.stem for path in RUN.parent.glob("*.py"))
    command = [sys.executable, "-c", IMPORT_EACH, *names]
    done = subprocess.run(command, cwd=RUN.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
