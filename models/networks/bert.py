"""BERT-like: post-norm, so that every normalizer also feeds the residual stream, and the projections are apart."""

import torch
from torch import nn
from torch.nn import functional as F

from normalizers.tokens import concat_heads, split_heads

from .transformer import mlp


class Layer(nn.Module):
    """norm1(x + attention(x)), then norm2(x + MLP(x)): [B, N, C] -> [B, N, C]."""

    def __init__(self, channels, hidden, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(channels, channels) for _ in range(3))
        self.proj = nn.Linear(channels, channels)
        self.norm1 = nn.LayerNorm(channels)
        self.mlp = mlp(channels, hidden)
        self.norm2 = nn.LayerNorm(channels)

    def attention(self, x):
        heads = (split_heads(project(x), self.heads) for project in (self.query, self.key, self.value))
        return self.proj(concat_heads(F.scaled_dot_product_attention(*heads)))

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Bert(nn.Module):
    """ids [B, N] -> [B, N, vocabulary]; the head, behind a norm of its own, is tied to the embedding."""

    def __init__(self, vocabulary=1000, channels=256, hidden=1024, depth=4, heads=4, length=32):
        super().__init__()
        self.length = length
        self.embed = nn.Embedding(vocabulary, channels)
        self.positions = nn.Parameter(0.02 * torch.randn(1, length, channels))
        self.norm = nn.LayerNorm(channels)
        self.layers = nn.Sequential(*(Layer(channels, hidden, heads) for _ in range(depth)))
        self.transform = nn.Sequential(nn.Linear(channels, channels), nn.GELU(), nn.LayerNorm(channels))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def example_inputs(self):
        return {"ids": torch.randint(self.embed.num_embeddings, (2, self.length))}

    def forward(self, ids):
        x = self.layers(self.norm(self.embed(ids) + self.positions))
        return self.transform(x) @ self.embed.weight.t() + self.bias
