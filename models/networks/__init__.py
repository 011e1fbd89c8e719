"""The networks to export: those written here by name, and any model of timm."""

from functools import partial

import timm
import torch

from .bert import Bert
from .cvt import CvT
from .dtn_vit import DTNViT
from .encoder_decoder import EncoderDecoder
from .llama import Llama
from .mabn_convnet import MABNConvNet
from .patch_tst import PatchTST
from .t2t_vit import T2TViT
from .vit import DualPatchNorm, PatchesByConv, ViT

VIT = dict(img_size=32, patch_size=8, embed_dim=96, depth=2, num_heads=3, num_classes=10)
VIT_HERE = dict(side=32, patch=8, channels=96, hidden=384, depth=2, heads=3, classes=10)
DPN_CONV = partial(DualPatchNorm, patches=PatchesByConv)
TEXT = dict(channels=96, hidden=192, depth=2, heads=3)

# name: (constructor, arguments, arguments of the tiny version)
OURS = {
    "t2t_vit_14": (T2TViT, {}, dict(side=32, channels=96, depth=2, heads=3, classes=10)),
    "dtn_vit_tiny_patch16_224": (DTNViT, dict(embed_dim=192, num_heads=4), VIT | dict(num_heads=4, depth=3)),
    "dtn_vit_small_patch16_224": (DTNViT, dict(embed_dim=384, num_heads=6), VIT | dict(num_heads=6, depth=3)),
    "dpn_vit_small_patch16_224": (ViT, dict(embedding=DualPatchNorm), VIT_HERE),
    "dpn_conv_vit_small_patch16_224": (ViT, dict(embedding=DPN_CONV), VIT_HERE),
    "cvt_13": (CvT, {}, dict(side=32, channels=(48, 96), depths=(1, 1), heads=(1, 3), classes=10)),
    "encoder_decoder": (EncoderDecoder, {}, TEXT),
    "encoder_decoder_post": (partial(EncoderDecoder, norm_first=False), {}, TEXT),
    "bert": (Bert, {}, TEXT),
    "llama": (Llama, {}, TEXT | dict(heads=4)),
    "patch_tst": (PatchTST, {}, dict(length=32, channels=96, depth=2, heads=3)),
    "mabn_convnet": (MABNConvNet, {}, {}),
}

# A tiny version keeps the architecture and every kind of normalizer site of the network: name: (image side, arguments).
TINY = {
    "vit_small_patch16_224": (32, VIT),
    "deit_small_patch16_224": (32, VIT),
    "deit3_small_patch16_224": (32, VIT),
    "vit_small_patch14_dinov2": (32, VIT),
    "vit_base_patch16_siglip_224": (32, VIT | dict(num_classes=0)),
    "eva02_tiny_patch14_224": (32, VIT),
    "convnext_atto": (32, dict(dims=(16, 32, 48, 64), depths=(1, 1, 1, 1), num_classes=10)),
    "tiny_vit_5m_224": (
        64,
        dict(embed_dims=(16, 32, 48, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4), window_sizes=(4, 4, 4, 2)),
    ),
    "maxvit_nano_rw_256": (64, dict(img_size=64, embed_dim=(32, 32, 64, 64), depths=(1, 1, 1, 1), num_classes=10)),
    "cait_xxs24_224": (32, VIT),
    "swin_tiny_patch4_window7_224": (
        32,
        dict(img_size=32, window_size=4, embed_dim=48, depths=(2, 2), num_heads=(3, 6), num_classes=10),
    ),
    "pvt_v2_b0": (64, dict(embed_dims=(16, 32, 80, 128), depths=(1, 1, 1, 1), num_classes=10)),
    "levit_128s": (
        64,
        dict(img_size=64, embed_dim=(32, 48, 64), num_heads=(2, 3, 4), depth=(1, 1, 1), num_classes=10),
    ),
}


def build(name, tiny=False):
    """The network of that name with its own normalizers, and example inputs [2, ...] by argument name."""
    if name in OURS:
        network, arguments, tiny_arguments = OURS[name]
        model = network(**arguments | (tiny_arguments if tiny else {}))
        return model, model.example_inputs()
    side, arguments = TINY[name] if tiny else (None, {})
    model = timm.create_model(name, **arguments)
    shape = (3, side, side) if side else model.pretrained_cfg["input_size"]
    return model, {"x": torch.randn(2, *shape)}
