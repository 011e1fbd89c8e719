"""Pointwise functions in the place of a normalizer: y = gamma f(alpha x) + beta, sections 4.1 to 4.3 of the DyT paper
("Ablating Layer Normalizations in ViT")."""

import torch
from torch import nn


class DynamicActivation(nn.Module):
    """[B, ..., C] -> [B, ..., C], or [B, C, H, W] -> [B, C, H, W] if `channels_first`; `bias=False` leaves beta out."""

    def __init__(self, channels, alpha=0.5, bias=True, channels_first=False):
        super().__init__()
        shape = (channels, 1, 1) if channels_first else (channels,)
        self.alpha = nn.Parameter(torch.full((1,), alpha))
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape)) if bias else None

    def activation(self, z):
        """f, element by element."""
        raise NotImplementedError

    def forward(self, x):
        y = self.activation(self.alpha * x) * self.weight
        return y if self.bias is None else y + self.bias


class DyT(DynamicActivation):
    """Dynamic tanh."""

    def activation(self, z):
        return torch.tanh(z)


class DyS(DynamicActivation):
    """Dynamic sigmoid."""

    def activation(self, z):
        return torch.sigmoid(z)


class DySS(DynamicActivation):
    """Dynamic softsign."""

    def activation(self, z):
        return z / (1 + z.abs())
