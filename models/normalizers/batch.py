"""Batch normalization of tokens, and what re-parameterizes it.

    y = gamma (x - mu) / sqrt(sigma^2 + eps) + beta        (1) and (10) to (12) of the UN paper

mu and sigma^2 are those of the mini-batch in training and moving averages (`running_mean`, `running_var`) at inference.
"""

import torch
from torch import nn

from .tokens import on_channels


class BN(nn.Module):
    """Batch normalization over flattened tokens: [B, ..., C] -> [-1, C] -> [B, ..., C]."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.bn = nn.BatchNorm1d(channels, eps)

    def forward(self, x):
        return self.bn(x.reshape(-1, x.shape[-1])).reshape(x.shape)


class BNTransposed(nn.Module):
    """Batch normalization over transposed tokens: [B, N, C] -> [B, C, N] -> [B, N, C]."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.bn = nn.BatchNorm1d(channels, eps)

    def forward(self, x):
        return on_channels(self.bn, x)


class RepBN(nn.Module):
    """Re-parameterized batch normalization, BN(x) + alpha x with a scalar alpha, over transposed tokens."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1))
        self.bn = nn.BatchNorm1d(channels, eps)

    def forward(self, x):
        return on_channels(lambda x: self.bn(x) + self.alpha * x, x)
