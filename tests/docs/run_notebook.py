"""Run a notebook in a kernel of its own, and write it, as it is then, to another file: run_notebook.py FROM TO SECONDS.

A process of its own, for nbclient leaves event loops open, and a kernel that finds itself below pytest does not show what its
children write.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

if __name__ == "__main__":
    source, target, seconds = sys.argv[1:]
    notebook = nbformat.read(source, as_version=4)
    where = {"metadata": {"path": str(Path(target).parent)}}
    NotebookClient(notebook, timeout=int(seconds), coalesce_streams=True, resources=where).execute()
    nbformat.write(notebook, target)
