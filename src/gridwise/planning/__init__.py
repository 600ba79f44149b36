"""Planning: what a training step on thousands of workers needs, sends and waits for, before anyone pays for them.

A plan
    plan            the entry point: plan one grid, or search for the best
    one_step        one worker's training step, on meta tensors
    roles           workers that do the same: one of each role is run
    recorder        work and memory of every operator called, by layer (`current_layer`, `layer_names`)
    halos           what a worker fetches around its blocks
    memory          allocations and releases: the curve, its peak and who holds it (`costs.convolutions`: workspaces)
    report          the result, as data and as tables ; `gridwise.show.planned` draws it
Its time
    calibrate       measures those numbers on this machine
    times           compute, communication and waiting of each layer
    auto_grid       what `distribute(model, "auto", ...)` asks
    search          ranks grids by time (`checkpointed`: what recomputation would save)
What happened
    tracing/        what a real run sends, waits for and computes, for ui.perfetto.dev and next to the plan
    page            all of it as one HTML file
"""

from ..costs.machine import Machine as Machine
from ..costs.machine import read_machine as read_machine
from ..tables import readable as readable
from .auto_grid import register as _register
from .plan import count as count
from .plan import plan as plan
from .report import Plan as Plan
from .search import Ranking as Ranking
from .tracing.trace import trace as trace
from .tracing.traced import Traced as Traced
from .tracing.traced import read_trace as read_trace

_register()
