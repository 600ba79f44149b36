"""Run scripts written for DistDL, torchdistX and pytagi on Gridwise, unchanged.

    gridwise compat script.py [args]
    python -m gridwise_compat script.py [args]          also under mpiexec and torchrun, and with `-m module`
    gridwise_compat.install()                           in a program, before it imports the old names

Afterwards `import distdl`, `import torchdistx` and `import pytagi` find the thin packages of these names in this one.
They keep the old module paths, names, argument orders and defaults; Gridwise does the work. Workers and child processes
inherit this. Gridwise, beside which this package is installed, does not import it.

A page for each library says what differs and why: docs/from-distdl.md, docs/from-torchdistx.md, docs/from-pytagi.md.
"""

from .finder import LIBRARIES as LIBRARIES
from .finder import install as install
from .notes import CompatibilityNote as CompatibilityNote
