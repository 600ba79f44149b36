"""Parameters of the global model, in blocks.

blocks             this worker's block, who else holds it, how its gradient is summed
gradient_buckets   gradients of several parameters in one sum, which is under way while backward goes on
gradient_wire      in which dtype gradients travel: a switch
replicas           whether those who hold the same block hold the same numbers
clipping           clip by the global norm
whole_tensor       optimisers that need whole tensors refuse blocks
full_state_dict    the state of the global model; saved_blocks: what a state dict says of its blocks
"""
