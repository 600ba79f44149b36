"""Transposed convolution: the same moments as `Conv2d`, with the kernel (in, out, height, width) run the other way."""

from __future__ import annotations

from .conv2d import Conv2d


class ConvTranspose2d(Conv2d):
    """A 2-d transposed convolution with Gaussian kernels.

    The output has `stride (n - 1) + dilation (k - 1) + 1 - 2 padding` rows for n input rows; with `padding_type` 2 one
    `padding` is cut away, at the bottom and on the right. Parameters as in `Conv2d`.

    Parameters
    ----------
    in_channels, ..., groups : as in `Conv2d`

    Examples
    --------
    >>> from gridwise.tagi import nn
    >>> net = nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2, in_width=8, in_height=8))
    >>> mu, var = net(np.ones((2, 3 * 8 * 8), dtype='float32'))
    >>> mu.shape
    (2048,)
    """

    transposed = True
