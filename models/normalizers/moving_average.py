"""Moving Average Batch Normalization (MABN), as equation (14) of the UN paper states it."""

import torch
from torch import nn
from torch.nn import functional as F

from .quadratic_mean import QuadraticMeanNorm2d
from .tokens import on_channels


class MABN2d(QuadraticMeanNorm2d):
    """MABN of images: [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, channels, eps=1e-5, momentum=0.9, window=4, warmup=100):
        super().__init__(channels, eps, momentum, max(warmup, window))
        self.register_buffer("running_var", torch.ones(1, channels, 1, 1))
        self.register_buffer("gradient_window", torch.zeros(window, channels))

    def activation_statistic(self, sigma2):
        """The exponential moving average (EMAS)."""
        self.moving_average(self.running_var, sigma2)
        return sigma2 if self.warming_up else self.running_var.flatten().clone()

    def gradient_statistic(self, g):
        """The simple moving average over the window (SMAS)."""
        window = self.gradient_window
        window[self.iteration % len(window)] = g
        return g if self.warming_up else window.mean(0)

    def inference_statistic(self, channels):
        return self.running_var.view(1, channels, 1, 1)


class MABN(nn.Module):
    """MABN in the place of LayerNorm: [B, ..., C] -> [B, C, N, 1] -> [B, ..., C]."""

    def __init__(self, channels, **options):
        super().__init__()
        self.mabn = MABN2d(channels, **options)

    def forward(self, x):
        return on_channels(lambda x: self.mabn(x.unsqueeze(-1)).squeeze(-1), x)


class CenConv2d(nn.Conv2d):
    """The convolution that goes with MABN: every filter has its mean taken away, [B, C, H, W] -> [B, C', H', W']."""

    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
