"""What layers with a window share: which input a block of the output needs, and how it is fetched.

windowed_layer    the base of convolutions, pooling and padding
conv_part         a worker's part in a convolution: what it fetches, and how it computes its outputs
local_part        a worker's part in a local operator of one tensor; `padded_part`: in padding
fetch             fetches the box that a worker needs, with room for padding, in one copy
saved_input       what is kept of it for backward
conv_node         a convolution as one autograd node; `border_conv`: that of a large block on a device
output_size       the size that a call may ask for
"""
