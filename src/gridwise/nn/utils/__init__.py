"""Counterparts of `torch.nn.utils` for parameters on a grid."""

from ..parameters.clipping import clip_grad_norm_ as clip_grad_norm_
