"""Fake tensors: Gridwise's own."""

from gridwise.fake import fake_mode as fake_mode
from gridwise.fake import is_fake as is_fake
from gridwise.fake import meta_like as meta_like
