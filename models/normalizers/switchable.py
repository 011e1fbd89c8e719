"""Switchable Normalization (SN), Luo et al., *Differentiable Learning-to-Normalize via Switchable Normalization*, 2018.

    y = gamma (x - sum_k w_k mu_k) / sqrt(sum_k w'_k sigma_k^2 + eps) + beta,    k in {in, ln, bn}        (3)

w = softmax(lambda) and w' = softmax(lambda') are numbers (5), the same for all channels. The statistics of IN and LN
are those of the input, those of BN the mini-batch's in training and moving averages at inference.
"""

import torch
from torch import nn


class SN(nn.Module):
    """[B, ..., C] -> [B, ..., C], or [B, C, H, W] -> [B, C, H, W] if `channels_first`."""

    def __init__(self, channels, eps=1e-5, momentum=0.1, channels_first=False):
        super().__init__()
        self.eps, self.momentum, self.channels_first = eps, momentum, channels_first
        shape = (channels, 1, 1) if channels_first else (channels,)
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.mean_weight = nn.Parameter(torch.ones(3))
        self.variance_weight = nn.Parameter(torch.ones(3))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))

    def statistics(self, x):
        """The means and the variances of IN, LN and BN. Those of LN follow from those of IN, as in (4)."""
        channel = 1 if self.channels_first else x.ndim - 1
        places = [axis for axis in range(1, x.ndim) if axis != channel]
        mean = x.mean(places, keepdim=True)
        variance = ((x - mean) ** 2).mean(places, keepdim=True)
        moment = variance + mean**2
        layer_mean = mean.mean(channel, keepdim=True)
        layer_variance = moment.mean(channel, keepdim=True) - layer_mean**2
        if self.training:
            batch_mean = mean.mean(0, keepdim=True)
            batch_variance = moment.mean(0, keepdim=True) - batch_mean**2
            with torch.no_grad():
                self.running_mean.lerp_(batch_mean.reshape(self.running_mean.shape), self.momentum)
                self.running_var.lerp_(batch_variance.reshape(self.running_var.shape), self.momentum)
        else:
            batch_mean, batch_variance = self.running_mean, self.running_var
        return (mean, layer_mean, batch_mean), (variance, layer_variance, batch_variance)

    def forward(self, x):
        means, variances = self.statistics(x)
        w, v = self.mean_weight.softmax(0), self.variance_weight.softmax(0)
        mean = w[0] * means[0] + w[1] * means[1] + w[2] * means[2]
        variance = v[0] * variances[0] + v[1] * variances[1] + v[2] * variances[2]
        return self.weight * (x - mean) / (variance + self.eps).sqrt() + self.bias
