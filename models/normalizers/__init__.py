"""The normalizers that stand where a transformer has LayerNorm, by the short name of their kind.

Every kind is a module that takes token tensors [B, ..., C] and keeps their shape. `CHANNELS_FIRST` holds the kinds
that have a form of their own for images [B, C, H, W]; the others are transposed there and back.
"""

from torch import nn

from .batch import BN, BNTransposed, RepBN
from .dynamic_activation import DyS, DySS, DyT
from .dynamic_token import DTN
from .moving_average import MABN, MABN2d
from .power import MaskPowerNorm, PowerNorm
from .root_mean_square import RMSNorm
from .switchable import SN
from .tokens import ChannelsFirst, NoNorm
from .unified import UN, UN2d

NORMALIZERS = {
    "none": NoNorm,
    "ln": nn.LayerNorm,
    "rmsnorm": RMSNorm,
    "bn": BN,
    "bnt": BNTransposed,
    "repbn": RepBN,
    "un": UN,
    "mabn": MABN,
    "pnstar": PowerNorm,
    "pn": MaskPowerNorm,
    "dyt": DyT,
    "dys": DyS,
    "dyss": DySS,
    "dtn": DTN,
    "sn": SN,
}

CHANNELS_FIRST = {
    "none": NoNorm,
    "bn": nn.BatchNorm2d,
    "bnt": nn.BatchNorm2d,
    "un": UN2d,
    "mabn": MABN2d,
    "dyt": lambda channels: DyT(channels, channels_first=True),
    "dys": lambda channels: DyS(channels, channels_first=True),
    "dyss": lambda channels: DySS(channels, channels_first=True),
    "sn": lambda channels: SN(channels, channels_first=True),
}


def make(kind, channels, channels_first=False, **options):
    """A normalizer of `channels` channels, for tokens [B, ..., C], or for images [B, C, H, W] if `channels_first`."""
    if not channels_first:
        return NORMALIZERS[kind](channels, **options)
    if kind in CHANNELS_FIRST:
        return CHANNELS_FIRST[kind](channels, **options)
    return ChannelsFirst(NORMALIZERS[kind](channels, **options))
