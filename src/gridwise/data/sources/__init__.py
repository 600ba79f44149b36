"""Where samples come from: arrays, and files of four formats, of which any box can be read.

opening                   a source for a path or an array
source                    the interface of a source; arrays of any library
npy                       .npy files and memory maps
hdf5, zarr_array, nifti   files of other libraries
stores                    all of these but NIfTI, by the address of a store
"""

from .opening import as_source as as_source
from .opening import open_array as open_array
from .source import Slices as Slices
from .source import Source as Source
from .source import reading as reading
