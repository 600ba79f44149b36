"""Rules, by kind of operator: how the tensors of a call have to lie, where its outputs lie then, and what makes them."""

from . import (
    creation as _creation,  # noqa: F401
)
from . import (
    indexing as _indexing,  # noqa: F401
)
from . import (
    joining as _joining,  # noqa: F401
)
from . import (
    norms as _norms,  # noqa: F401
)
from . import (
    products as _products,  # noqa: F401
)
from . import (
    reductions as _reductions,  # noqa: F401
)
from . import (
    reshaping as _reshaping,  # noqa: F401
)
from . import (
    windowed as _windowed,  # noqa: F401
)
from .call import Call as Call
from .call import NoRule as NoRule
from .call import Placed as Placed
from .pointwise import pointwise as pointwise
from .table import register_rule as register_rule
from .table import rule_for as rule_for
