"""DistDL's functions of autograd, over the workers of a partition: one call of Gridwise's layer each."""

from .all_sum_reduce import AllSumReduceFunction as AllSumReduceFunction
