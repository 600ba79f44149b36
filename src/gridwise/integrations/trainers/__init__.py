"""What adapters of trainers share: a user's step as one function on the grid, batches, metrics, checkpoints.

batches       which tensors of a batch are cut, and whether all workers have drawn the same
steps         a step of a module as one function on the grid
own_steps     steps of a module that has distributed its parts itself
trainer_seen  what of the trainer a step may read while it is recorded
metrics       what a step logs, and its metrics: done after the step, with whole tensors
stand_ins     what stands, while a step is recorded, for a value that is not recorded
scaling       loss scaling with one decision of all workers
states        checkpoints of a trainer, in the format of `gridwise.checkpoint`
"""
