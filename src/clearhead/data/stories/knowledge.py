"""What is known of variables whose words are not: which combinations of words are possible.

A conjunction of tables, each over a few variables, that say which of their values go together. Asking whether anything
is possible, or what follows for some of the variables, eliminates the others one by one, as `entropy` does with
expectations: exact, and no table is larger than the variables that really meet in it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Knowledge:
    """`tables` are the possible combinations, by the variables they are about, in sorted order: (size of each...)."""

    tables: Mapping[tuple[str, ...], Table] = field(default_factory=dict)

    def restricted(self, variables: tuple[str, ...], possible: Table) -> "Knowledge | None":
        """What is known if a further table holds; None if no value of some variable is left."""
        order = sorted(range(len(variables)), key=lambda axis: variables[axis])
        key, table = tuple(variables[axis] for axis in order), possible.transpose(order)
        if key in self.tables:
            table = table & self.tables[key]
        if len(key) == 1 and not table.any():
            return None
        return Knowledge({**self.tables, key: table})

    def possible(self) -> bool:
        """Whether some values of all variables satisfy every table."""
        return all(bool(table.any()) for table in self.about(()).tables.values())

    def about(self, variables: Iterable[str]) -> "Knowledge":
        """What follows for these variables alone."""
        kept, known = {*variables}, self
        for variable in sorted({name for key in self.tables for name in key} - kept):
            known = known._eliminated(variable)
        return known

    def renamed(self, names: Mapping[str, str]) -> "Knowledge":
        """The same, of variables with other names."""
        known: Knowledge | None = Knowledge()
        for key, table in self.tables.items():
            assert known is not None
            known = known.restricted(tuple(names[variable] for variable in key), table)
        assert known is not None
        return known

    def key(self) -> frozenset[tuple[tuple[str, ...], bytes]]:
        """Equal where the tables are."""
        return frozenset((variables, table.tobytes()) for variables, table in self.tables.items())

    def _eliminated(self, variable: str) -> "Knowledge":
        meeting = [(key, table) for key, table in self.tables.items() if variable in key]
        axes = sorted({variable, *(name for key, _ in meeting for name in key)})
        joint = np.ones([1] * len(axes), dtype=np.bool_)
        for key, table in meeting:
            joint = joint & table[tuple(slice(None) if axis in key else None for axis in axes)]
        left = tuple(name for name in axes if name != variable)
        others = {key: table for key, table in self.tables.items() if variable not in key}
        table = np.asarray(joint.any(axes.index(variable)))
        if table.all():
            return Knowledge(others)
        return Knowledge({**others, left: table & others[left] if left in others else table})
