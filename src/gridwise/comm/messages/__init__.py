"""What travels.

packing       lists of views as one message, without needless copies
wire_dtypes   bytes where tensors are copied, a dtype that the library can add where they are summed
requests      messages under way, and what is done when they have arrived
arrays        small arrays of all workers, on all of them
share_sum     sums in shares, begun now and ended later
dissemination few numbers of many workers, in log2(n) messages each
channel       a small exchange that is made again and again, with buffers of its own
"""
