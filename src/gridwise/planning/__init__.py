"""Planning: what a model on a grid of thousands of workers takes and sends, before anyone pays for them.

plan      runs the real code of every worker, one after the other, on the transport that counts, without numbers
report    what comes out: per worker and per layer, as data and as a table; `gridwise.show.planned` draws it
"""

from .plan import count as count
from .plan import plan as plan
from .report import Plan as Plan
from .report import readable as readable
