"""Checkpoints that cannot be lost or misread: a repartition from a grid to files, and from files to any other grid."""

from .background import Pending as Pending
from .background import async_save as async_save
from .interchange import convert as convert
from .interchange import read as read
from .loading import load as load
from .loading import verify as verify
from .manifest import FORMAT_VERSION as FORMAT_VERSION
from .manifest import Manifest as Manifest
from .parse import read_manifest as read_manifest
from .saving import save as save
from .series import Series as Series
from .state import PerWorker as PerWorker
from .storage import FileSystemReader as FileSystemReader
from .storage import FileSystemWriter as FileSystemWriter
from .storage import load_state_dict as load_state_dict
from .storage import save_state_dict as save_state_dict
