"""RMSNorm: y = gamma x / sqrt(mean over channels of x^2 + eps), section 3.2.3 of the DyT paper without the shift."""

from torch import nn


class RMSNorm(nn.RMSNorm):
    """[B, ..., C] -> [B, ..., C], written out because the legacy exporter has no form for PyTorch's own."""

    def __init__(self, channels, eps=1e-6):
        super().__init__(channels, eps)

    def forward(self, x):
        return x * ((x * x).mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight
