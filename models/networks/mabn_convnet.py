"""A convolutional network as MABN was made for: each centred convolution is followed by the normalizer."""

import torch
from torch import nn

from normalizers.moving_average import CenConv2d, MABN2d


class MABNConvNet(nn.Module):
    """[B, 3, S, S] -> [B, classes]."""

    def __init__(self, side=32, channels=(32, 64, 128), classes=10):
        super().__init__()
        self.side = side
        self.stages = nn.Sequential(
            *(
                nn.Sequential(CenConv2d(inputs, outputs, 3, 2, padding=1, bias=False), MABN2d(outputs), nn.ReLU())
                for inputs, outputs in zip((3, *channels), channels)
            )
        )
        self.head = nn.Linear(channels[-1], classes)

    def example_inputs(self):
        return {"x": torch.randn(2, 3, self.side, self.side)}

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))
