"""Four workers hold a picture on a 2 x 2 grid, move it between grids, check every adjoint, and draw who owns what.

python examples/picture_on_a_grid.py            starts four local workers
mpiexec -n 4 python examples/picture_on_a_grid.py    uses the workers it is given (torchrun and srun likewise)
"""

import sys

import torch
from rich.console import Console
from rich.table import Table

import gridwise
from gridwise import nn, show
from gridwise.grid import Box, Layout
from gridwise.testing import check_adjoint

HEIGHT, WIDTH, HALO = 90, 123, 6


def picture() -> torch.Tensor:
    """Ripples around two stones in a pond."""
    y, x = torch.meshgrid(torch.linspace(0, 3, HEIGHT), torch.linspace(0, 4, WIDTH), indexing="ij")
    rings = [torch.cos(14 * ((y - a) ** 2 + (x - b) ** 2).sqrt()) for a, b in ((1.1, 1.3), (2.0, 2.9))]
    return (rings[0] + rings[1]).double()


def main() -> list[tuple[str, str, str]]:
    """Run by every worker; worker 0 returns the rows of the table."""
    P_world = gridwise.world()
    P_x = P_world.grid(2, 2)
    P_rows = P_world.grid(4, 1)
    halo = nn.HaloExchange(P_x, [(HALO, HALO), (HALO, HALO)])
    to_rows, back = nn.Repartition(P_x, P_rows), nn.Repartition(P_rows, P_x)

    whole = picture()
    block = gridwise.scatter(whole if P_world.rank == 0 else None, P_x)
    wide = halo(block)
    rows = to_rows(block)
    gathered = gridwise.gather(back(rows), P_x)

    zeros, table = torch.zeros_like(block), []
    steps = {
        "scatter to 2 x 2": (lambda x: gridwise.scatter(x, P_x), block, whole if P_world.rank == 0 else whole[:0, 0]),
        f"halo of {HALO}": (halo, wide, zeros),
        "repartition to 4 x 1": (to_rows, rows, zeros),
        "sum over the grid": (nn.AllSumReduce(P_x, (0, 1)), block[:3, :4], zeros[:3, :4]),
        "gather": (lambda x: gridwise.gather(x, P_x), gathered, zeros),
    }
    for name, (layer, result, like) in steps.items():
        error = check_adjoint(layer, like)
        table.append((name, str(tuple(result.shape)), f"{error:.1e}"))
    if P_world.rank == 0:
        assert torch.equal(gathered, whole), "the picture came back changed"
        layouts = {
            "blocks": Layout.balanced(P_x.geometry, whole.shape),
            "rows": Layout.balanced(P_rows.geometry, whole.shape),
        }
        near = layouts["blocks"].block(0)
        needed = {0: Box((0, 0), tuple(end + HALO for end in near.stop))}
        show.owners(
            {
                "scattered": layouts["blocks"],
                "with a halo for worker 0": layouts["blocks"],
                "repartitioned": layouts["rows"],
            },
            path="out/picture_on_a_grid.png",
            image=whole.numpy(),
            needs={"with a halo for worker 0": needed},
            title="Who owns which part of the picture",
        )
    return table


def report(rows: list[tuple[str, str, str]]) -> None:
    table = Table("movement", "worker 0 gets", "<Ax, y> = <x, A'y> to", title="A picture on four workers")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    Console().print("The picture came back bit for bit. Who owns what: out/picture_on_a_grid.png")


if __name__ == "__main__":
    if gridwise.world().size == 1:
        report(gridwise.launch(main, workers=4)[0])
    else:
        rows = main()
        if gridwise.world().rank == 0:
            report(rows)
    sys.exit(0)
