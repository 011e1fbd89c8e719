"""A Transformer for translation, of the size used on IWSLT14: 6 + 6 layers, 512 channels, 4 heads; pre-norm or post-norm."""

import math

import torch
from torch import nn

from .t2t_vit import sinusoids
from .transformer import mlp


# The fused kernel that nn.MultiheadAttention takes in inference mode has no ONNX form.
torch.backends.mha.set_fastpath_enabled(False)


def attend(attention, queries, memory, mask=None):
    """nn.MultiheadAttention with packed projections: [B, T, C], [B, S, C] -> [B, T, C]."""
    return attention(queries, memory, memory, attn_mask=mask, need_weights=False)[0]


def residual(x, norm, block, norm_first):
    """x + block(norm(x)), or norm(x + block(x)) as in the first Transformer."""
    return x + block(norm(x)) if norm_first else norm(x + block(x))


class EncoderLayer(nn.Module):
    """[B, S, C] -> [B, S, C]."""

    def __init__(self, channels, hidden, heads, norm_first):
        super().__init__()
        self.norm_first = norm_first
        self.norm1 = nn.LayerNorm(channels)
        self.self_attn = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = mlp(channels, hidden, nn.ReLU)

    def forward(self, x):
        x = residual(x, self.norm1, lambda y: attend(self.self_attn, y, y), self.norm_first)
        return residual(x, self.norm2, self.mlp, self.norm_first)


class DecoderLayer(nn.Module):
    """[B, T, C] -> [B, T, C], with the output of the encoder [B, S, C] as memory."""

    def __init__(self, channels, hidden, heads, norm_first):
        super().__init__()
        self.norm_first = norm_first
        self.norm1 = nn.LayerNorm(channels)
        self.self_attn = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(channels)
        self.cross_attn = nn.MultiheadAttention(channels, heads, batch_first=True)
        self.norm3 = nn.LayerNorm(channels)
        self.mlp = mlp(channels, hidden, nn.ReLU)

    def forward(self, x, memory, mask):
        x = residual(x, self.norm1, lambda y: attend(self.self_attn, y, y, mask), self.norm_first)
        x = residual(x, self.norm2, lambda y: attend(self.cross_attn, y, memory), self.norm_first)
        return residual(x, self.norm3, self.mlp, self.norm_first)


class EncoderDecoder(nn.Module):
    """source [B, S] and target [B, T] token ids -> [B, T, vocabulary]; the head is tied to the target embedding."""

    def __init__(self, vocabulary=1000, channels=512, hidden=1024, depth=6, heads=4, length=24, norm_first=True):
        super().__init__()
        self.length = length
        self.source_embed = nn.Embedding(vocabulary, channels)
        self.target_embed = nn.Embedding(vocabulary, channels)
        self.register_buffer("positions", sinusoids(length, channels), persistent=False)
        self.register_buffer("mask", torch.full((length, length), -torch.inf).triu(1), persistent=False)
        self.encoder = nn.ModuleList(EncoderLayer(channels, hidden, heads, norm_first) for _ in range(depth))
        self.encoder_norm = nn.LayerNorm(channels) if norm_first else nn.Identity()
        self.decoder = nn.ModuleList(DecoderLayer(channels, hidden, heads, norm_first) for _ in range(depth))
        self.decoder_norm = nn.LayerNorm(channels) if norm_first else nn.Identity()
        for embed in (self.source_embed, self.target_embed):
            nn.init.normal_(embed.weight, std=channels**-0.5)

    def example_inputs(self):
        vocabulary = self.source_embed.num_embeddings
        return {name: torch.randint(vocabulary, (2, self.length)) for name in ("source", "target")}

    def embed(self, embed, ids):
        return math.sqrt(embed.embedding_dim) * embed(ids) + self.positions[:, : ids.shape[1]]

    def forward(self, source, target):
        memory = self.embed(self.source_embed, source)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.encoder_norm(memory)
        x, length = self.embed(self.target_embed, target), target.shape[1]
        for layer in self.decoder:
            x = layer(x, memory, self.mask[:length, :length])
        return nn.functional.linear(self.decoder_norm(x), self.target_embed.weight)
