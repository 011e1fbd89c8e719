"""A pre-norm ViT with mean pooling, and the ways to embed patches in it, Dual PatchNorm (DPN) among them."""

import torch
from torch import nn
from torch.nn import functional as F

from normalizers.tokens import to_tokens

from .transformer import Block


class PatchEmbedding(nn.Module):
    """[B, I, S, S] -> [B, (S/P)^2, C] by a convolution."""

    def __init__(self, inputs, patch, channels):
        super().__init__()
        self.proj = nn.Conv2d(inputs, channels, patch, patch)

    def forward(self, x):
        return to_tokens(self.proj(x))


class PatchesByReshape(nn.Module):
    """[B, I, S, S] -> [B, (S/P)^2, I P^2] by Reshape and Transpose; channels before rows before columns."""

    def __init__(self, inputs, patch):
        super().__init__()
        self.patch = patch

    def forward(self, x):
        side = x.shape[-1] // self.patch
        x = x.reshape(x.shape[0], x.shape[1], side, self.patch, side, self.patch)
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


class PatchesByConv(nn.Module):
    """The same by a convolution whose filters are one-hot, each of which picks one pixel of the patch."""

    def __init__(self, inputs, patch):
        super().__init__()
        self.patch = patch
        self.register_buffer("weight", torch.eye(inputs * patch**2).view(-1, inputs, patch, patch))

    def forward(self, x):
        return to_tokens(F.conv2d(x, self.weight, stride=self.patch))


class DualPatchNorm(nn.Module):
    """LN(PE(LN(x))), equation (4) of the DPN paper: [B, I, S, S] -> [B, (S/P)^2, C]."""

    def __init__(self, inputs, patch, channels, patches=PatchesByReshape):
        super().__init__()
        self.patches = patches(inputs, patch)
        self.norm1 = nn.LayerNorm(inputs * patch**2)
        self.proj = nn.Linear(inputs * patch**2, channels)
        self.norm2 = nn.LayerNorm(channels)

    def forward(self, x):
        return self.norm2(self.proj(self.norm1(self.patches(x))))


class ViT(nn.Module):
    """[B, I, S, S] -> [B, classes]: ViT-S/16 by default. `embedding` makes the patch embedding."""

    def __init__(
        self,
        side=224,
        patch=16,
        inputs=3,
        channels=384,
        hidden=1536,
        depth=12,
        heads=6,
        classes=1000,
        embedding=PatchEmbedding,
    ):
        super().__init__()
        self.shape = (inputs, side, side)
        self.patch_embed = embedding(inputs, patch, channels)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2, channels))
        self.blocks = nn.Sequential(*(Block(channels, heads, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, classes)

    def example_inputs(self):
        return {"x": torch.randn(2, *self.shape)}

    def forward(self, x):
        x = self.blocks(self.patch_embed(x) + self.pos_embed)
        return self.head(self.norm(x).mean(1))
