"""The button on a block of code copies what a reader wants to run: in a headless chromium."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path

import pytest
from pages import DOCS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=3000 --dump-dom"
)
BLOCKS = {
    "bash": ("make setup\nmake demo\n", "make setup\nmake demo"),
    "diff": (" import torch\n+import gridwise\n-old()\n+new()\n", "import torch\nimport gridwise\nnew()"),
    "pycon": (">>> for i in (1, 2):\n...     print(i)\n1\n2\n", "for i in (1, 2):\n    print(i)"),
    "python": ("if a:\n\n    b()\n", "if a:\n\n    b()"),
}
READ = "document.title = [...document.querySelectorAll('.highlight')].slice(1).map(codeOf).join('\\u241e')"


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
def test_a_button_copies_the_code_and_not_what_is_around_it(tmp_path: Path) -> None:
    def block(language: str, text: str) -> str:
        return f'<div class="highlight-{language}"><div class="highlight"><pre>{escape(text)}</pre></div></div>'

    page = tmp_path / "page.html"
    blocks = [block("text", "printed"), *(block(language, text) for language, (text, _) in BLOCKS.items())]
    script = (DOCS / "static" / "copy.js").read_text(encoding="utf-8")
    ready = f"document.addEventListener('DOMContentLoaded', () => {{ {READ} }})"
    page.write_text(f"<title></title>{''.join(blocks)}<script>{script}\n{ready}</script>", encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS.split(), f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert shown.count('<button class="copy-code"') == len(BLOCKS), "none on what programs print"
    (title,) = re.findall(r"<title>(.*?)</title>", shown, re.DOTALL)
    copied = unescape(title).split("\u241e")
    assert copied == [wanted for _, wanted in BLOCKS.values()]
