"""From files to blocks on a grid, and back.

dataset      `BlockDataset`: samples of which each worker reads its block
loader       `BlockLoader`: batches of them, in the same order on all workers, read ahead, resumable
cut_loader   `CutLoader`: batches of a torch DataLoader, cut into blocks
transforms   `RandomCrop`, `RandomFlip`, functions: the same on all workers that hold a sample
writing      `BlockWriter`: results to Zarr, HDF5 and .npy, block by block
sources/     arrays and files to read from

samples, reader, order, prefetch, reading_process, targets, agreement: the parts of these.
"""

from .cut_loader import CutLoader as CutLoader
from .dataset import BlockDataset as BlockDataset
from .loader import BlockLoader as BlockLoader
from .sources import open_array as open_array
from .transforms import RandomCrop as RandomCrop
from .transforms import RandomFlip as RandomFlip
from .writing import BlockWriter as BlockWriter
