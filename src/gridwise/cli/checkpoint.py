"""gridwise checkpoint ls | show | verify | convert | prune: manage checkpoints from the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from itertools import chain
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from ..checkpoint import Series, convert, read_manifest, verify
from ..checkpoint import show as show_contents
from ..checkpoint.disk import Lock
from ..checkpoint.interchange.formats import FORMATS, is_checkpoint
from ..checkpoint.reading.reader import Progress as Report
from ..checkpoint.store_path import Place, StorePath, place_of
from ..checkpoint.writing.folder import leftovers, remove_leftovers
from ..checkpoint.writing.store_saving import size_at
from ..errors import CheckpointError, CheckpointMismatch, CheckpointNotFound, PartitionError

app = typer.Typer(help="List, inspect, verify, convert and prune checkpoints.", no_args_is_help=True)

Where = Annotated[str, typer.Argument(help="A checkpoint, or a folder of them.")]
One = Annotated[str, typer.Argument(help="A checkpoint. Also a safetensors file, or a folder of them.")]
Folder = Annotated[str, typer.Argument(help="A folder of checkpoints: a series.")]


WIDE = 100_000
"""Columns of output that is not a terminal, so that nothing is truncated."""


def _console() -> Console:
    console = Console(soft_wrap=True)
    return console if console.is_terminal else Console(soft_wrap=True, width=WIDE)


@app.command("ls")
def ls(folder: Where = ".") -> None:
    """List the checkpoints in a folder, and what interrupted saves have left."""
    place = place_of(folder)
    with _readable_errors():
        if not place.exists():
            raise CheckpointNotFound(f"there is nothing at {place}.", fix="give a folder of checkpoints.")
    table = Table("checkpoint", "written", "workers", "tensors", "data", "left-overs", box=None, pad_edge=False)
    for path in _candidates(place):
        name = escape(path.name)
        try:
            manifest = read_manifest(path) if is_checkpoint(path) else None
            left = len(list(leftovers(path)))
        except CheckpointError as error:
            table.add_row(name, f"[red]{escape(str(error).splitlines()[0])}[/red]")
            continue
        if manifest is not None:
            facts = [manifest.written_at, str(manifest.workers), str(len(manifest.tensors)), decimal(manifest.nbytes)]
            table.add_row(name, *facts, str(left or ""))
        elif left:
            table.add_row(name, "not committed", "", "", "", str(left))
    if table.row_count == 0:
        _console().print(escape(f"no checkpoints in {place}"))
        raise typer.Exit(1)
    _console().print(table)


@app.command("show")
def show(path: One, values: Annotated[bool, typer.Option(help="Show plain values too.")] = True) -> None:
    """Show what a checkpoint holds: tensors with their shapes and blocks, and plain values."""
    with _readable_errors():
        place = place_of(path)
        inside = [] if is_checkpoint(place) else [each.name for each in _candidates(place) if is_checkpoint(each)]
        if inside:
            raise CheckpointNotFound(
                f"there is no checkpoint at {place}, but a folder of {len(inside)} checkpoints.",
                fix=f"show one of them, {place / inside[-1]}, or list them: gridwise checkpoint ls {place}",
            )
        contents = show_contents(place)
    _console().print(escape(contents.facts))
    _console().print(_table(contents.tensors()))
    if values and contents.manifest.values:
        _console().print(_table(contents.values()))


def _table(lines: list[list[str]]) -> Table:
    table = Table(*lines[0], box=None, pad_edge=False)
    for line in lines[1:]:
        table.add_row(*map(escape, line))
    return table


@app.command("verify")
def verify_command(paths: Annotated[list[str], typer.Argument(help="Checkpoints, or folders of them.")]) -> None:
    """Check every byte against its checksum; the exit status is 1 if anything is damaged or missing."""
    with _readable_errors():
        places = [place_of(path) for path in paths]
        found = {place: [path for path in _candidates(place) if is_checkpoint(path)] for place in places}
    without = [str(folder) for folder, inside in found.items() if not inside]
    if without:
        _console().print(escape(f"no checkpoints in {', '.join(without)}"))
    damaged = len(without)
    for path in chain.from_iterable(found.values()):
        try:
            with _progress(path.name, read_manifest(path).nbytes) as report:
                manifest = verify(path, report)
            _console().print(
                f"[green]whole[/green]    {escape(str(path))}  {len(manifest.tensors)} tensors, {decimal(manifest.nbytes)}"
            )
        except CheckpointError as error:
            damaged += 1
            _console().print(f"[red]damaged[/red]  {escape(str(path))}\n{escape(str(error))}")
    raise typer.Exit(1 if damaged else 0)


@app.command("convert")
def convert_command(
    source: Annotated[
        str,
        typer.Argument(help="A checkpoint, safetensors, a Hugging Face folder, a torch.save file, or a DCP folder."),
    ],
    target: Annotated[str, typer.Argument(help="A new checkpoint, a file that ends in .safetensors, or see --to.")],
    to: Annotated[str | None, typer.Option(help=f"What to write: {', '.join(FORMATS)}.")] = None,
    prefix: Annotated[str, typer.Option(help="Only what lies below this key.")] = "",
    shard_size: Annotated[str, typer.Option(help="Of a Hugging Face folder: 300MB, 5GiB.")] = "5GB",
    trust: Annotated[bool, typer.Option(help="Allow unpickling, which runs code in the file.")] = False,
) -> None:
    """Convert between formats."""
    with _readable_errors(), _progress(place_of(source).name, _bytes_of(place_of(source))) as report:
        size = bytes_in(shard_size)
        convert(source, target, to=to, trust=trust, prefix=prefix, shard_size=size, progress=report)
    _console().print(escape(f"{target} written"))


@app.command("prune")
def prune(
    folder: Folder,
    keep_last: Annotated[int, typer.Option(help="How many of the newest to keep.", min=1)] = 3,
    keep_every: Annotated[
        int, typer.Option(help="Also keep every step that is a multiple of this; 0: none.", min=0)
    ] = 0,
    keep_best: Annotated[int, typer.Option(help="Also keep so many with the best --metric; 0: none.", min=0)] = 0,
    metric: Annotated[str | None, typer.Option(help="The name of a number in the metadata.")] = None,
    mode: Annotated[str, typer.Option(help="Which metric is best: min or max.")] = "min",
    dry_run: Annotated[bool, typer.Option(help="Only say what would be removed.")] = False,
) -> None:
    """Remove older checkpoints of a series, and what interrupted saves have left."""
    with _readable_errors():
        place = place_of(folder)
        if not place.is_dir():
            raise CheckpointNotFound(
                f"there is no folder {place}: nothing was removed.", fix="give the folder of a series."
            )
    verb = "would remove" if dry_run else "removed"
    with _readable_errors():
        series = Series(place, keep_last, keep_every or None, keep_best=keep_best or None, metric=metric, mode=mode)
        steps = series.steps()
        gone = sorted(set(steps) - series.kept(steps))
        if not dry_run:
            gone = series.prune()
        for step in gone:
            _console().print(escape(f"{verb} {series.path(step).name}"))
        for path in _candidates(place):
            left = list(leftovers(path))
            if left and not dry_run:
                with nullcontext() if isinstance(path, StorePath) else closing(Lock(path)):
                    remove_leftovers(path)
            if left:
                _console().print(escape(f"{verb} {len(left)} left-overs in {path.name}"))
    _console().print(f"{len(steps) - len(gone)} checkpoints stay")


def bytes_in(text: str) -> int:
    """A number of bytes with a unit: 300MB, 5 GiB."""
    from ..memory_sizes import number_of_bytes

    try:
        return number_of_bytes(text)
    except PartitionError:
        raise CheckpointMismatch(f"`shard_size` (={text!r}) must be a number of bytes: 300MB, 5GB, 2GiB.") from None


def _candidates(folder: Place) -> Iterator[Place]:
    """The folder itself if it is a checkpoint or an unfinished one; otherwise the folders in it."""
    if is_checkpoint(folder) or any(folder.glob("data-*")):
        yield folder
    elif folder.is_dir():
        inside: list[Place] = [*folder.iterdir()]
        yield from (path for path in sorted(inside, key=lambda path: path.name) if path.is_dir())


def _bytes_of(source: Place) -> int | None:
    if is_checkpoint(source):
        return read_manifest(source).nbytes
    return size_at(source)


@contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except (CheckpointError, OSError) as error:
        text = str(error).replace("`trust=True`", "`--trust`")  # as it is spelt on the command line
        _console().print(f"[red]{type(error).__name__}[/red]: {escape(text)}")
        raise typer.Exit(1) from None


@contextmanager
def _progress(name: str, total: int | None) -> Iterator[Report]:
    console = _console()
    if not console.is_terminal:
        yield lambda done: None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, transient=True, console=console) as progress:
        task = progress.add_task(escape(name), total=total)
        yield lambda done: progress.advance(task, done)
