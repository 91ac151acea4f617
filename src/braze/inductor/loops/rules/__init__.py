"""How each primitive becomes a kernel: one row a primitive, ``RULES[name](state, node) -> Ref``.

Elementwise primitives without a row share :data:`ELEMENTWISE`.
"""

from ..build import Rule
from .creation import RULES as _creation
from .elementwise import RULES as _elementwise
from .elementwise import elementwise as ELEMENTWISE
from .indexing import RULES as _indexing
from .reduction import RULES as _reduction
from .scatter import RULES as _scatter

RULES: dict[str, Rule] = {**_creation, **_elementwise, **_reduction, **_indexing, **_scatter}

__all__ = ["ELEMENTWISE", "RULES"]
