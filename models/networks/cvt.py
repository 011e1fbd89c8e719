"""CvT-like: convolutional token embeddings, and depthwise convolutions with padding behind the norm of each block."""

import torch
from torch import nn
from torch.nn import functional as F

from normalizers.tokens import concat_heads, split_heads, to_image, to_tokens

from .transformer import mlp


class ConvProjection(nn.Module):
    """A depthwise 3x3 convolution with padding, batch normalization and a linear layer: [B, C, H, W] -> [B, N, C]."""

    def __init__(self, channels, stride):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, channels)

    def forward(self, x):
        return self.linear(to_tokens(self.bn(self.conv(x))))


class Block(nn.Module):
    """[B, N, C] -> [B, N, C] for the N = side^2 tokens of an image, keys and values at half the resolution."""

    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(channels)
        self.q, self.k, self.v = (ConvProjection(channels, stride) for stride in (1, 2, 2))
        self.proj = nn.Linear(channels, channels)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = mlp(channels, 4 * channels)

    def attention(self, x, side):
        x = to_image(x, side)
        heads = (split_heads(project(x), self.heads) for project in (self.q, self.k, self.v))
        return self.proj(concat_heads(F.scaled_dot_product_attention(*heads)))

    def forward(self, x, side):
        x = x + self.attention(self.norm1(x), side)
        return x + self.mlp(self.norm2(x))


class Stage(nn.Module):
    """A strided convolution with padding, a norm and blocks: [B, C, H, W] -> [B, C', H/stride, W/stride]."""

    def __init__(self, inputs, channels, depth, heads, kernel, stride):
        super().__init__()
        self.embed = nn.Conv2d(inputs, channels, kernel, stride, padding=kernel // 2)
        self.norm = nn.LayerNorm(channels)
        self.blocks = nn.ModuleList(Block(channels, heads) for _ in range(depth))

    def forward(self, x):
        x = self.embed(x)
        side = x.shape[-1]
        x = self.norm(to_tokens(x))
        for block in self.blocks:
            x = block(x, side)
        return to_image(x, side)


class CvT(nn.Module):
    """[B, 3, S, S] -> [B, classes], CvT-13 by default, with mean pooling in the place of its class token."""

    def __init__(self, side=224, channels=(64, 192, 384), depths=(1, 2, 10), heads=(1, 3, 6), classes=1000):
        super().__init__()
        self.side = side
        stages = zip((3, *channels), channels, depths, heads)
        self.stages = nn.Sequential(
            *(Stage(*stage, kernel=3 if i else 7, stride=2 if i else 4) for i, stage in enumerate(stages))
        )
        self.norm = nn.LayerNorm(channels[-1])
        self.head = nn.Linear(channels[-1], classes)

    def example_inputs(self):
        return {"x": torch.randn(2, 3, self.side, self.side)}

    def forward(self, x):
        x = to_tokens(self.stages(x))
        return self.head(self.norm(x).mean(1))
