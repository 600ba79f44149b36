"""Planning: what a model on a grid of thousands of workers takes, sends and waits for, before anyone pays for them; and
what it did, after.

A plan
    plan            the entry: a grid planned, or grids searched
    one_step        one worker's training step, on tensors without numbers
    roles           workers that do the same: one of each is run
    recorder        operators as they are called: work and memory, by layer (`current_layer`, `layer_names`)
    halos           what a worker fetches around its blocks
    memory          allocations and releases: the curve, its peak and who holds it (`convolutions`: what their kernels take)
    report          what comes out, as data and as tables (`tables`); `gridwise.show.planned` draws it
Its time
    machine         a machine as a few numbers in a TOML file; `machines/` has some
    calibrate       those numbers, measured here
    times           compute, communication and waiting of each layer
    search          grids in the order of their times (`checkpointed`: what recomputing would save)
What happened
    tracing/        what a real run sends, waits for and computes, for ui.perfetto.dev, and beside the plan
    page            all of it as one HTML file
"""

from .machine import Machine as Machine
from .machine import read_machine as read_machine
from .plan import count as count
from .plan import plan as plan
from .report import Plan as Plan
from .search import Ranking as Ranking
from .tables import readable as readable
from .tracing.trace import trace as trace
from .tracing.traced import Traced as Traced
from .tracing.traced import read_trace as read_trace
