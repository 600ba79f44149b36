"""Messages between workers.

packing       several views in one message, without needless copies
wire_dtypes   dtypes on the wire: bytes for copies, a dtype that the library can add for sums
requests      pending messages, and what is done when they have arrived
arrays        gathering small arrays of all workers
chunked_sum     sums in chunks, begun now and completed later
dissemination small data of many workers, in log2(n) messages each
"""
