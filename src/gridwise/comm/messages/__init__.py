"""What travels.

packing       lists of views as one message, without needless copies
wire_dtypes   bytes where tensors are copied, a dtype that the library can add where they are summed
requests      messages under way, and what is done when they have arrived
arrays        small arrays of all workers, on all of them
channel       a small exchange that is made again and again, with buffers of its own
"""
