"""Count lines of code: without blank lines, comments and docstrings.

    python tools/count_code.py                    per room of src/gridwise and src/gridwise_compat, and the sums
    python tools/count_code.py src/gridwise/comm  the same for other folders

A line counts if any token of code touches it. Docstrings are those of modules, classes and functions; a string under an
attribute counts.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = [ROOT / "src" / name for name in ("gridwise", "gridwise_compat")]
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def code_lines(path: Path) -> int:
    """Lines of `path` that hold code."""
    with tokenize.open(path) as file:
        text = file.read()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(lines)


def room_of(path: Path, top: Path) -> str:
    return str(path.parent.relative_to(top)) if path.parent != top else "."


def main(folders: list[str]) -> None:
    for top in [Path(folder).resolve() for folder in folders] or PACKAGES:
        lines: Counter[str] = Counter()
        files: Counter[str] = Counter()
        for path in sorted(top.rglob("*.py")):
            lines[room_of(path, top)] += code_lines(path)
            files[room_of(path, top)] += 1
        for room in sorted(lines):
            print(f"{lines[room]:7,}  {files[room]:4} files  {room}")
        print(f"{sum(lines.values()):7,}  {sum(files.values()):4} files  in all")


if __name__ == "__main__":
    main(sys.argv[1:])
