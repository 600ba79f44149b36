"""AdamW in any precision."""

from .anyprecision_optimizer import AnyPrecisionAdamW as AnyPrecisionAdamW
