"""Gridwise's own."""

from gridwise.nn.mixins.conv_mixin import ConvMixin as ConvMixin
