"""Dynamic Token Normalization (DTN), Algorithm 1 of the DTN paper."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from .tokens import concat_heads, on_tokens, split_heads, to_image, to_tokens


def relative_positions(side):
    """R of equation (6): [T, T, 3] with T = side^2, R_ij = [dx^2 + dy^2, dx, dy] from token i to token j."""
    axis = torch.arange(side, dtype=torch.float)
    y, x = (axis.flatten() for axis in torch.meshgrid(axis, axis, indexing="ij"))
    dx, dy = x[None, :] - x[:, None], y[None, :] - y[:, None]
    return torch.stack((dx**2 + dy**2, dx, dy), -1)


def attention_centres(heads):
    """a^h of equation (7): [H, 3], the offsets Delta^h being those of a neighbourhood of ceil(sqrt(H))^2 tokens."""
    side = math.ceil(math.sqrt(heads))
    offsets = torch.arange(side, dtype=torch.float) - (side - 1) // 2
    centres = torch.cartesian_prod(offsets, offsets)[:heads]
    return torch.cat((-torch.ones(heads, 1), 2 * centres), -1)


class DTN(nn.Module):
    """[B, ..., C] -> [B, ..., C] for T = side^2 tokens in row-major order, no class token among them.

    With `pool` s > 1 the inter-token statistics are those of s x s averages of the tokens, T/s^2 of them, each
    standing for its s x s tokens: the paper's way to divide their cost by s^4.
    """

    def __init__(self, channels, heads, side, pool=1, eps=1e-5):
        super().__init__()
        self.heads, self.side, self.pool, self.eps = heads, side, pool, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.omega = nn.Parameter(torch.zeros(heads, 1, 1))
        self.a = nn.Parameter(attention_centres(heads))
        self.register_buffer("R", relative_positions(side // pool), persistent=False)

    def mean_over(self, P, x):
        """P^h x^h for every head h, [B, T, C] -> [B, H, T, C/H]; P is [H, T/s^2, T/s^2]."""
        if self.pool == 1:
            return P @ split_heads(x, self.heads)
        pooled = to_tokens(F.avg_pool2d(to_image(x, self.side), self.pool))
        mean = to_image(concat_heads(P @ split_heads(pooled, self.heads)), self.side // self.pool)
        return split_heads(to_tokens(F.interpolate(mean, scale_factor=self.pool)), self.heads)

    def tokens(self, x):
        """[B, T, C] -> [B, T, C]; the numbers are the lines of Algorithm 1."""
        ratio = torch.sigmoid(self.omega)  # 5
        P = (self.R @ self.a.t()).softmax(1).permute(2, 0, 1)  # 6
        mean = x.mean(-1, keepdim=True)  # 8
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        inter_mean = self.mean_over(P, x)  # 9
        inter_variance = self.mean_over(P, x * x) - inter_mean * inter_mean
        mean = ratio * mean.unsqueeze(1) + (1 - ratio) * inter_mean  # 10
        variance = ratio * variance.unsqueeze(1) + (1 - ratio) * inter_variance  # 11
        mean, variance = concat_heads(mean), concat_heads(variance)  # 12
        return self.weight * (x - mean) / (variance + self.eps).sqrt() + self.bias  # 13

    def forward(self, x):
        return on_tokens(self.tokens, x)
