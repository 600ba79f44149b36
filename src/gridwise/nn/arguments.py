"""Partitions among the arguments of layers: where one is needed, and where a number belongs."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import PartitionError, describe
from ..partition import Partition


def need_partition(layer: str, name: str, given: object, axes: int | None = None) -> None:
    """Raise unless `given` is a partition, and on a grid of its own where a tensor has `axes` dims, more than one."""
    in_a_row = axes is not None and axes > 1 and type(given) is Partition and given.dim == 1
    if isinstance(given, Partition) and not in_a_row:
        return
    has = f"workers {given.ranks} in a row" if isinstance(given, Partition) else repr(given)
    shape = "shape" if axes is None else f"[{', '.join('1' * axes)}]"
    raise PartitionError(
        describe(
            f"{layer}: `{name}` (={has}) must be a partition on a grid{'' if axes is None else f' of {axes} axes'}.",
            fix=f"{name} = gridwise.world().create_cartesian_topology_partition({shape}), with an extent above 1 for each "
            "dim that is cut.",
        )
    )


def refuse_partitions(layer: str, arguments: Mapping[str, object], call: str) -> None:
    """Raise where a partition is given for another argument: DistDL has its partitions first, torch its numbers."""
    wrong = [name for name, value in arguments.items() if isinstance(value, Partition)]
    if wrong:
        are = "is a partition" if len(wrong) == 1 else "are partitions"
        names = " and ".join(f"`{name}`" for name in wrong)
        raise PartitionError(
            describe(
                f"{layer}: {names} {are}, where a number belongs: `P_y` and `P_w` are keyword-only here.",
                fix=f"{layer}({call}, P_y=P_y, P_w=P_w).",
            )
        )
