"""AdamW in any precision: Gridwise's own, which needs no CUDA and returns the closure's loss."""

from gridwise.optim import AnyPrecisionAdamW as AnyPrecisionAdamW
