"""The frame that UN, MABN and PN* share: normalization by a smoothed quadratic mean, without a mean.

Section 3.1 of the UN paper ("Unified Framework") with mu = 0. In training, at iteration t,

    sigma_t^2    = mean of x^2 over the mini-batch, per channel        (13)
    sigma^_t^2   = Theta_sigma(sigma_t^2, ..., sigma_{t-M+1}^2)        (5)
    Z_t          = X_t / sqrt(sigma^_t^2 + eps)                        (2)
    Y_t          = gamma Z_t + beta                                    (3)
    dL/dX_t      = (dL/dZ_t - Z_t psi_t) / sqrt(sigma^_t^2 + eps)      (7)
    psi_t        = Theta_g(g_t, ..., g_{t-M+1}),  g_t = mean of dL/dZ_t Z_t   (9)

A kind is a choice of the averages Theta_sigma and Theta_g. At inference all kinds are the same affine map.
"""

import torch
from torch import nn


class Normalize(torch.autograd.Function):
    """Z = X / sqrt(sigma^2 + eps), with sigma^2 held constant and the estimated gradient of equation (7).

    x is [B, C, H, W], sigma2 is [C], `gradient_statistic` is Theta_g: [C] -> [C].
    """

    @staticmethod
    def forward(ctx, x, sigma2, eps, gradient_statistic):
        sigma = (sigma2 + eps).sqrt().view(1, -1, 1, 1)
        z = x / sigma
        ctx.save_for_backward(z, sigma)
        ctx.gradient_statistic = gradient_statistic
        return z

    @staticmethod
    def backward(ctx, grad_z):
        z, sigma = ctx.saved_tensors
        psi = ctx.gradient_statistic((grad_z * z).mean((0, 2, 3)))
        return (grad_z - z * psi.view(1, -1, 1, 1)) / sigma, None, None, None


class QuadraticMeanNorm2d(nn.Module):
    """[B, C, H, W] -> [B, C, H, W]; a subclass gives the two averages and the statistic of inference."""

    def __init__(self, channels, eps, momentum, warmup):
        super().__init__()
        self.eps, self.momentum, self.warmup = eps, momentum, warmup
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("iteration", torch.zeros((), dtype=torch.long))

    @property
    def warming_up(self):
        """True in the first iterations, which use the statistics of the mini-batch alone."""
        return self.iteration <= self.warmup

    def activation_statistic(self, sigma2):
        """Theta_sigma, [C] -> [C]; also updates the statistic of inference."""
        raise NotImplementedError

    def gradient_statistic(self, g):
        """Theta_g, [C] -> [C]."""
        raise NotImplementedError

    def inference_statistic(self, channels):
        """sigma^2 of inference, [1, C, 1, 1]."""
        raise NotImplementedError

    def moving_average(self, average, value):
        """average = alpha average + (1 - alpha) value, in place (12)."""
        average.mul_(self.momentum).add_(value.view_as(average), alpha=1 - self.momentum)

    def forward(self, x):
        channels = x.size(1)
        if self.training:
            self.iteration += 1
            sigma2 = self.activation_statistic((x.detach() ** 2).mean((0, 2, 3)))
            x = Normalize.apply(x, sigma2, self.eps, self.gradient_statistic)
        else:
            x = x / (self.inference_statistic(channels) + self.eps).sqrt()
        return self.weight.view(1, channels, 1, 1) * x + self.bias.view(1, channels, 1, 1)
