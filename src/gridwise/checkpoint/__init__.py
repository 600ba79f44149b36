"""Checkpoints that cannot be lost or misread: a repartition from a grid to files, and from files to any grid."""

from .contents import metadata as metadata
from .contents import show as show
from .format.manifest import FORMAT_VERSION as FORMAT_VERSION
from .format.manifest import Manifest as Manifest
from .format.manifest_parser import read_manifest as read_manifest
from .interchange.formats import convert as convert
from .interchange.formats import read as read
from .interchange.huggingface import export as export
from .interchange.torchdistx import FileSystemReader as FileSystemReader
from .interchange.torchdistx import FileSystemWriter as FileSystemWriter
from .interchange.torchdistx import load_state_dict as load_state_dict
from .interchange.torchdistx import save_state_dict as save_state_dict
from .reading.loading import load as load
from .reading.loading import verify as verify
from .reading.renaming import LoadReport as LoadReport
from .series import Series as Series
from .state.per_worker import PerWorker as PerWorker
from .writing.background import Pending as Pending
from .writing.background import async_save as async_save
from .writing.saving import save as save
