"""What layers with a window share: which input a block of the output needs, fetched in one copy.

windowed_layer    the base of convolutions, pooling and padding
fetch             brings the box that a worker needs, with room for padding; by one call where its pieces are a stack
saved_input       how little of it is kept for backward
conv_node         a convolution as one node of autograd; `border_conv`: of a large block on a device
interpolation     rows and weights of interpolation
overlap           switches of earlier versions, without effect
"""
