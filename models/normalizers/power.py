"""PowerNorm (PN), and PN*, which is PN without its group scaling.

PN* takes exponential moving averages of the activation and of the gradient statistic (section 2.2.2 of the UN paper)
and keeps the former as `running_phi`. PN first divides each token by the quadratic means of its groups of channels.
"""

import math

import torch
from torch import nn

from .quadratic_mean import QuadraticMeanNorm2d
from .tokens import on_tokens


class GroupScaling1D(nn.Module):
    """Divides each group of C/groups channels of a token by its own quadratic mean: [B, N, C] -> [B, N, C]."""

    def __init__(self, groups=4, eps=1e-5):
        super().__init__()
        self.groups, self.eps = groups, eps

    def forward(self, x):
        batch, tokens, channels = x.shape
        grouped = x.reshape(batch, tokens, self.groups, channels // self.groups)
        moment = (grouped * grouped).mean(-1)
        moment = moment.unsqueeze(-1).expand(grouped.shape).reshape(batch, tokens, channels)
        return x / (moment + self.eps).sqrt()


class PowerNorm(QuadraticMeanNorm2d):
    """PN*: [B, ..., C] -> [B, C, N, 1] -> [B, ..., C]."""

    def __init__(self, channels, eps=1e-5, momentum=0.9, warmup=100):
        super().__init__(channels, eps, momentum, warmup)
        self.register_buffer("running_phi", torch.ones(1, channels, 1, 1))
        self.register_buffer("psi", torch.zeros(channels))

    def activation_statistic(self, sigma2):
        self.moving_average(self.running_phi, sigma2)
        return sigma2 if self.warming_up else self.running_phi.flatten().clone()

    def gradient_statistic(self, g):
        self.moving_average(self.psi, g)
        return g if self.warming_up else self.psi

    def inference_statistic(self, channels):
        return self.running_phi

    def tokens(self, x):
        """[B, N, C] -> [B, N, C], with the views of the released code."""
        x = x.permute(0, 2, 1).contiguous()
        shape = x.shape
        x = x.reshape(shape[0], shape[1], -1).unsqueeze(-1)
        return super().forward(x).reshape(shape).permute(0, 2, 1).contiguous()

    def forward(self, x):
        return on_tokens(self.tokens, x)


class MaskPowerNorm(PowerNorm):
    """PN: group scaling, then PN*, as PowerNorm was released (its mask of padded tokens left out)."""

    def __init__(self, channels, groups=4, **options):
        super().__init__(channels, **options)
        self.gp = GroupScaling1D(math.gcd(groups, channels))

    def tokens(self, x):
        return super().tokens(self.gp(x))
