"""Checkpoints: Gridwise's own. Folders that torchdistX has written are not read: they are pickles, which run code."""

from gridwise.checkpoint import FileSystemReader as FileSystemReader
from gridwise.checkpoint import FileSystemWriter as FileSystemWriter
from gridwise.checkpoint import load_state_dict as load_state_dict
from gridwise.checkpoint import save_state_dict as save_state_dict
