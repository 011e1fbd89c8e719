"""LLaMA-like: RMSNorm, rotary positions, grouped keys and values, gated feed-forward network, no biases."""

import torch
from torch import nn
from torch.nn import functional as F

from normalizers import RMSNorm
from normalizers.tokens import concat_heads, split_heads


def rotary(length, channels, base=10000.0):
    """cos and sin of the rotary embedding, [2, N, C/heads]."""
    angles = torch.arange(length)[:, None] / base ** (torch.arange(0, channels, 2) / channels)
    angles = torch.cat((angles, angles), -1)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x, cos, sin):
    """[B, H, N, C/H] -> [B, H, N, C/H]."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Layer(nn.Module):
    """[B, N, C] -> [B, N, C]."""

    def __init__(self, channels, hidden, heads, groups):
        super().__init__()
        self.heads, self.groups, width = heads, groups, channels // heads
        self.input_norm = RMSNorm(channels)
        self.q = nn.Linear(channels, heads * width, bias=False)
        self.k = nn.Linear(channels, groups * width, bias=False)
        self.v = nn.Linear(channels, groups * width, bias=False)
        self.o = nn.Linear(heads * width, channels, bias=False)
        self.post_norm = RMSNorm(channels)
        self.gate = nn.Linear(channels, hidden, bias=False)
        self.up = nn.Linear(channels, hidden, bias=False)
        self.down = nn.Linear(hidden, channels, bias=False)

    def attention(self, x, cos, sin):
        q = rotate(split_heads(self.q(x), self.heads), cos, sin)
        k = rotate(split_heads(self.k(x), self.groups), cos, sin).repeat_interleave(self.heads // self.groups, 1)
        v = split_heads(self.v(x), self.groups).repeat_interleave(self.heads // self.groups, 1)
        return self.o(concat_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.input_norm(x), cos, sin)
        y = self.post_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """ids [B, N] -> [B, N, vocabulary]."""

    def __init__(self, vocabulary=1000, channels=256, hidden=688, depth=4, heads=4, groups=2, length=32):
        super().__init__()
        self.length = length
        self.embed = nn.Embedding(vocabulary, channels)
        self.register_buffer("rotary", rotary(length, channels // heads), persistent=False)
        self.layers = nn.ModuleList(Layer(channels, hidden, heads, groups) for _ in range(depth))
        self.norm = RMSNorm(channels)
        self.head = nn.Linear(channels, vocabulary, bias=False)

    def example_inputs(self):
        return {"ids": torch.randint(self.embed.num_embeddings, (2, self.length))}

    def forward(self, ids):
        x = self.embed(ids)
        cos, sin = self.rotary[:, : ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))
