"""The GPUs of this machine: Gridwise's own. Without a driver there are none; the original raised."""

from gridwise.tagi.cuda import get_current_device as get_current_device
from gridwise.tagi.cuda import get_device_count as get_device_count
from gridwise.tagi.cuda import get_device_memory as get_device_memory
from gridwise.tagi.cuda import get_device_properties as get_device_properties
from gridwise.tagi.cuda import is_available as is_available
from gridwise.tagi.cuda import is_device_available as is_device_available
from gridwise.tagi.cuda import is_nccl_available as is_nccl_available
from gridwise.tagi.cuda import set_device as set_device
