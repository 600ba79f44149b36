"""Parameters of the global model, in blocks.

blocks             this worker's block, who else holds it, how its gradient is summed
gradient_buckets   gradients of several parameters summed in one message, while backward goes on
gradient_wire      the dtype in which gradients are sent: a switch
no_sync            several backwards, whose gradients are summed once: a switch
replicas           whether all holders of a block hold the same numbers
clipping           clip by the global norm
whole_tensor       blocks are refused by optimisers and wrappers that need whole tensors
elementwise        optimisers that are not known by name are tried
full_state_dict    the state of the global model; saved_blocks: what a state dict records about its blocks
"""
