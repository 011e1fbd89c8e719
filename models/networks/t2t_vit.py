"""T2T-ViT-14: tokens-to-token modules with Performer attention, then a deep narrow ViT (Yuan et al., 2021)."""

import math

import torch
from torch import nn

from normalizers.tokens import to_image

from .transformer import Block, mlp


def sinusoids(positions, channels):
    """The fixed position embedding [1, N, C]."""
    angles = torch.arange(positions)[:, None] / 10000 ** (2 * (torch.arange(channels) // 2) / channels)
    even = torch.arange(channels) % 2 == 0
    return torch.where(even, angles.sin(), angles.cos())[None]


class TokenPerformer(nn.Module):
    """One head of linear attention that also changes the width: [B, N, C] -> [B, N, D].

    The released code adds 1e-8 to `total`; the dynamo exporter drops so small an addition, hence so does this code.
    """

    def __init__(self, channels, width, features=32):
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.kqv = nn.Linear(channels, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width, width)
        w = nn.init.orthogonal_(torch.empty(features, width)) * math.sqrt(features)
        self.w = nn.Parameter(w, requires_grad=False)

    def feature(self, x):
        """Positive random features of the softmax kernel: [B, N, D] -> [B, N, M]."""
        return (x @ self.w.t() - (x * x).sum(-1, keepdim=True) / 2).exp() / math.sqrt(len(self.w))

    def attention(self, x):
        key, query, value = self.kqv(x).chunk(3, -1)
        key, query = self.feature(key), self.feature(query)
        total = (query * key.sum(1, keepdim=True)).sum(-1, keepdim=True)
        return value + self.proj(query @ (key.transpose(1, 2) @ value) / total)

    def forward(self, x):
        x = self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class TokensToToken(nn.Module):
    """Three soft splits of an image [B, 3, S, S] into tokens [B, (S/16)^2, C]."""

    def __init__(self, side, channels, width=64):
        super().__init__()
        self.side = side
        self.split0 = nn.Unfold(7, stride=4, padding=2)
        self.attention1 = TokenPerformer(3 * 7 * 7, width)
        self.split1 = nn.Unfold(3, stride=2, padding=1)
        self.attention2 = TokenPerformer(width * 3 * 3, width)
        self.split2 = nn.Unfold(3, stride=2, padding=1)
        self.project = nn.Linear(width * 3 * 3, channels)

    def forward(self, x):
        x = self.attention1(self.split0(x).transpose(1, 2))
        x = self.attention2(self.split1(to_image(x, self.side // 4)).transpose(1, 2))
        return self.project(self.split2(to_image(x, self.side // 8)).transpose(1, 2))


class T2TViT(nn.Module):
    """[B, 3, S, S] -> [B, classes]. The query, key and value projections of the blocks have no bias."""

    def __init__(self, side=224, channels=384, depth=14, heads=6, classes=1000):
        super().__init__()
        self.side = side
        self.tokens_to_token = TokensToToken(side, channels)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, channels))
        self.pos_embed = nn.Parameter(sinusoids((side // 16) ** 2 + 1, channels), requires_grad=False)
        self.blocks = nn.Sequential(*(Block(channels, heads, 3 * channels, bias=False) for _ in range(depth)))
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, classes)

    def example_inputs(self):
        return {"x": torch.randn(2, 3, self.side, self.side)}

    def forward(self, x):
        x = self.tokens_to_token(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])
