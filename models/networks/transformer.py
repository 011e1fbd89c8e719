"""What the networks written here share: attention, the feed-forward network and the pre-norm block."""

from torch import nn
from torch.nn import functional as F

from normalizers.tokens import concat_heads


class Attention(nn.Module):
    """Multi-head self-attention with one packed projection: [B, N, C] -> [B, N, C]."""

    def __init__(self, channels, heads, bias=True):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels, bias)
        self.proj = nn.Linear(channels, channels)

    def forward(self, x):
        qkv = self.qkv(x).reshape(x.shape[0], x.shape[1], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return self.proj(concat_heads(F.scaled_dot_product_attention(*qkv.unbind(0))))


def mlp(channels, hidden, activation=nn.GELU):
    """The feed-forward network: [..., C] -> [..., C]."""
    return nn.Sequential(nn.Linear(channels, hidden), activation(), nn.Linear(hidden, channels))


class Block(nn.Module):
    """x + Attention(norm1(x)), then x + MLP(norm2(x)): [B, N, C] -> [B, N, C]. `norm` makes a normalizer."""

    def __init__(self, channels, heads, hidden, bias=True, norm=nn.LayerNorm):
        super().__init__()
        self.norm1 = norm(channels)
        self.attn = Attention(channels, heads, bias)
        self.norm2 = norm(channels)
        self.mlp = mlp(channels, hidden)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))
