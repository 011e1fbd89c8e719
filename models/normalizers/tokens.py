"""The views of a token tensor that normalizers and networks share, and the normalizer that does nothing.

They reshape by `x.shape`: of `unflatten` the legacy exporter takes the batch of the example for a constant.
"""

from torch import nn


class NoNorm(nn.Identity):
    """No normalizer at all: x -> x. The floor of every comparison."""


class ChannelsFirst(nn.Module):
    """A token normalizer on images: [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def split_heads(x, heads):
    """[B, N, C] -> [B, heads, N, C/heads]."""
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def concat_heads(x):
    """[B, heads, N, C/heads] -> [B, N, C]."""
    return x.transpose(1, 2).flatten(2)


def to_image(x, side):
    """[B, side^2, C] -> [B, C, side, side]."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], side, side)


def to_tokens(x):
    """[B, C, H, W] -> [B, H W, C]."""
    return x.flatten(2).transpose(1, 2)


def on_tokens(norm, x):
    """Applies `norm`, which takes [B, N, C], to x of shape [B, ..., C]."""
    if x.ndim == 3:
        return norm(x)
    return norm(x.reshape(x.shape[0], -1, x.shape[-1])).reshape(x.shape)


def on_channels(norm, x):
    """Applies `norm`, which takes [B, C, N], to x of shape [B, ..., C]."""
    return on_tokens(lambda tokens: norm(tokens.transpose(1, 2)).transpose(1, 2), x)
