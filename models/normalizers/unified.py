"""Unified Normalization (UN), Algorithm 2 of the UN paper with the outlier filtration of equations (18) and (19)."""

import torch
from torch import nn

from .quadratic_mean import QuadraticMeanNorm2d
from .tokens import on_tokens


def geometric_mean(window):
    """[M, C] -> [C], through logarithms so that the product does not overflow."""
    return window.log().mean(0).exp()


class UN2d(QuadraticMeanNorm2d):
    """UN of images: [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, channels, eps=1e-5, momentum=0.9, window=4, warmup=100):
        super().__init__(channels, eps, momentum, max(warmup, window))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("psi", torch.zeros(channels))
        self.register_buffer("activation_window", torch.ones(window, channels))
        self.register_buffer("gradient_window", torch.zeros(window, channels))
        self.outlier = False

    def activation_statistic(self, sigma2):
        """The geometric mean of the window (16), or sigma_t^2 itself while warming up or at an outlier (19)."""
        window = self.activation_window
        bound = len(window) * window.sqrt().var(unbiased=False)  # M V(Omega_{t-1}^(1/2)), over all of the layer
        slot = self.iteration % len(window)
        window[slot] = sigma2
        geometric = geometric_mean(window)
        self.outlier = bool(not self.warming_up and (window.mean(0) - geometric > bound).any())
        smoothed = sigma2 if self.outlier or self.warming_up else geometric
        if self.outlier:
            window[slot] = self.running_var
        self.moving_average(self.running_var, smoothed)
        return smoothed

    def gradient_statistic(self, g):
        """The arithmetic mean of the window with momentum (17), or g_t itself at an outlier (19)."""
        window = self.gradient_window
        window[self.iteration % len(window)] = self.psi if self.outlier else g
        if self.outlier or self.warming_up:
            self.moving_average(self.psi, g)
            return g
        self.moving_average(self.psi, window.mean(0))
        return self.psi

    def inference_statistic(self, channels):
        return self.running_var.view(1, channels, 1, 1)


class UN1d(UN2d):
    """UN of tokens: [B, N, C] -> [B, C, N, 1] -> [B, N, C], with the views of the released code."""

    def forward(self, x):
        x = x.transpose(1, 2).contiguous()
        shape = x.shape
        x = x.reshape(shape[0], shape[1], -1).unsqueeze(-1)
        return super().forward(x).reshape(shape).transpose(1, 2).contiguous()


class UN(nn.Module):
    """UN in the place of LayerNorm: [B, ..., C] -> [B, ..., C]."""

    def __init__(self, channels, **options):
        super().__init__()
        self.un = UN1d(channels, **options)

    def forward(self, x):
        return on_tokens(self.un, x)
