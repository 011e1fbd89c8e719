"""PatchTST-like forecasting: every series of a batch is cut into patches of its own; post-norm.

PatchTST itself has batch normalization, transposed, in the place of LayerNorm.
"""

import torch
from torch import nn

from .transformer import Attention, mlp


class Layer(nn.Module):
    """[B, N, C] -> [B, N, C]."""

    def __init__(self, channels, heads):
        super().__init__()
        self.attn = Attention(channels, heads)
        self.norm1 = nn.LayerNorm(channels)
        self.mlp = mlp(channels, 2 * channels)
        self.norm2 = nn.LayerNorm(channels)

    def forward(self, x):
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))


class PatchTST(nn.Module):
    """series [B, L, M] -> forecast [B, horizon, M]."""

    def __init__(self, length=96, series=3, patch=8, channels=128, depth=3, heads=4, horizon=24):
        super().__init__()
        self.shape, self.patch = (length, series), patch
        self.embed = nn.Linear(patch, channels)
        self.positions = nn.Parameter(0.02 * torch.randn(1, length // patch, channels))
        self.layers = nn.Sequential(*(Layer(channels, heads) for _ in range(depth)))
        self.head = nn.Linear(length // patch * channels, horizon)

    def example_inputs(self):
        return {"series": torch.randn(2, *self.shape)}

    def forward(self, series):
        batch, length, count = series.shape
        patches = series.transpose(1, 2).reshape(batch * count, -1, self.patch)
        x = self.layers(self.embed(patches) + self.positions)
        return self.head(x.flatten(1)).reshape(batch, count, -1).transpose(1, 2)
