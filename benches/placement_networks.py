"""The networks of benches/placement.py, with random weights. Large ones have fewer layers, as their names say."""

import sys
import warnings
from pathlib import Path

import timm
import torch
import torchvision
import transformers as t
from torch import nn

from peers.languages import export_step

sys.path.append(str(Path(__file__).parent.parent / "models"))

from export import forget_sources  # noqa: E402
from networks import build  # noqa: E402
from swap import randomize, replace  # noqa: E402

EAGER = {"attn_implementation": "eager"}
SIX, FOUR = {"num_hidden_layers": 6} | EAGER, {"num_hidden_layers": 4} | EAGER


class Read(nn.Module):
    """A model of transformers with one input, and only the named result."""

    def __init__(self, model, name, result):
        super().__init__()
        self.model, self.name, self.result = model, name, result

    def forward(self, x):
        return self.model(**{self.name: x})[self.result]


class Last(Read):
    """The logits of the last token. Without a mask, the model would look for where packed sequences begin."""

    def forward(self, ids):
        return self.model(ids, attention_mask=torch.ones_like(ids)).logits[:, -1]


class GroupedAttention(nn.Module):
    """Queries [B, 32, 1, D] against cached keys and values [B, 8, S, D], which are repeated four times."""

    def forward(self, queries, keys, values):
        scores = queries @ repeated(keys).transpose(2, 3) / queries.shape[-1] ** 0.5
        return scores.softmax(-1) @ repeated(values)


def repeated(value):
    batch, heads, places, channels = value.shape
    return value[:, :, None].expand(batch, heads, 4, places, channels).reshape(batch, 4 * heads, places, channels)


class Pyramid(nn.Module):
    """Features with strides from 4, by one convolution each, in the place of a backbone."""

    def __init__(self, widths):
        super().__init__()
        stem = nn.Conv2d(3, widths[0], 4, stride=4)
        smaller = [nn.Conv2d(inner, outer, 2, stride=2) for inner, outer in zip(widths, widths[1:])]
        self.convolutions = nn.ModuleList([stem, *smaller])

    def forward(self, x):
        features = []
        for convolution in self.convolutions:
            x = convolution(x).relu()
            features.append(x)
        return features


class FPN(nn.Module):
    """A feature pyramid network of 256 channels on the widths of ResNet-50."""

    def __init__(self, widths=(256, 512, 1024, 2048)):
        super().__init__()
        self.pyramid, self.head = Pyramid(widths), torchvision.ops.FeaturePyramidNetwork(widths, 256)

    def forward(self, x):
        features = {str(level): feature for level, feature in enumerate(self.pyramid(x))}
        return tuple(self.head(features).values())


def activated(inner, outer, kernel, stride=1):
    """A convolution as in YOLOv8."""
    convolution = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outer), nn.SiLU())


class C2f(nn.Module):
    """The block of YOLOv8's neck, with one bottleneck."""

    def __init__(self, inner, outer):
        super().__init__()
        half = outer // 2
        self.first, self.last = activated(inner, outer, 1), activated(3 * half, outer, 1)
        self.bottleneck = nn.Sequential(activated(half, half, 3), activated(half, half, 3))

    def forward(self, x):
        kept, processed = self.first(x).chunk(2, 1)
        return self.last(torch.cat([kept, processed, self.bottleneck(processed)], 1))


class Neck(nn.Module):
    """The neck of YOLOv8-S: upwards by nearest upsampling, downwards by strides."""

    def __init__(self, widths=(64, 128, 256, 512)):
        super().__init__()
        self.pyramid, self.up = Pyramid(widths), nn.Upsample(scale_factor=2)
        small, middle, large = widths[1:]
        self.upwards = nn.ModuleList([C2f(large + middle, middle), C2f(middle + small, small)])
        self.strides = nn.ModuleList([activated(small, small, 3, 2), activated(middle, middle, 3, 2)])
        self.downwards = nn.ModuleList([C2f(small + middle, middle), C2f(middle + large, large)])

    def forward(self, x):
        _, small, middle, large = self.pyramid(x)
        middle = self.upwards[0](torch.cat([self.up(large), middle], 1))
        small = self.upwards[1](torch.cat([self.up(middle), small], 1))
        middle = self.downwards[0](torch.cat([self.strides[0](small), middle], 1))
        return small, middle, self.downwards[1](torch.cat([self.strides[1](middle), large], 1))


def twice(inner, outer):
    """Two convolutions as in U-Net."""
    layers = [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU(), nn.Conv2d(outer, outer, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers)


def upsampling(inner, outer):
    """Nearest upsampling by 2 and a 3 × 3 convolution."""
    return nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(inner, outer, 3, padding=1))


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256)):
        super().__init__()
        pairs = list(zip(widths, widths[1:]))
        self.first = twice(3, widths[0])
        self.downwards = nn.ModuleList([nn.Sequential(nn.MaxPool2d(2), twice(*pair)) for pair in pairs])
        self.ups = nn.ModuleList([upsampling(outer, inner) for inner, outer in reversed(pairs)])
        self.upwards = nn.ModuleList([twice(2 * inner, inner) for inner, _ in reversed(pairs)])
        self.last = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x):
        skipped = [self.first(x)]
        for smaller in self.downwards:
            skipped.append(smaller(skipped[-1]))
        x = skipped.pop()
        for up, upward in zip(self.ups, self.upwards):
            x = upward(torch.cat([skipped.pop(), up(x)], 1))
        return self.last(x)


class Residual(nn.Module):
    """The block of a diffusion model's autoencoder."""

    def __init__(self, channels):
        super().__init__()
        halves = [[nn.GroupNorm(32, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1)] for _ in range(2)]
        self.layers = nn.Sequential(*halves[0], *halves[1])

    def forward(self, x):
        return x + self.layers(x)


def decoder(widths=(256, 256, 128, 64)):
    """The decoder of an autoencoder: nearest upsampling before convolutions, from 16² to 128² places."""
    layers = [nn.Conv2d(4, widths[0], 3, padding=1)]
    for inner, outer in zip(widths, widths[1:]):
        layers += [Residual(inner), upsampling(inner, outer)]
    return nn.Sequential(*layers, nn.GroupNorm(32, widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], 3, 3, padding=1))


class Dense(nn.Module):
    """The dense block of ESRGAN."""

    def __init__(self, channels=64, growth=32):
        super().__init__()
        outer = [growth] * 4 + [channels]
        inner = [channels + number * growth for number in range(5)]
        self.layers = nn.ModuleList([nn.Conv2d(*widths, 3, padding=1) for widths in zip(inner, outer)])

    def forward(self, x):
        values = [x]
        for layer in self.layers[:-1]:
            values.append(nn.functional.leaky_relu(layer(torch.cat(values, 1)), 0.2))
        return x + 0.2 * self.layers[-1](torch.cat(values, 1))


def esrgan():
    """ESRGAN with 3 of its 69 dense blocks: 4 times as high and as wide."""
    ends = [nn.Conv2d(64, 64, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(64, 3, 3, padding=1)]
    larger = [upsampling(64, 64), nn.LeakyReLU(0.2), upsampling(64, 64), nn.LeakyReLU(0.2)]
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), Dense(), Dense(), Dense(), *larger, *ends)


def written(model, examples, path, exporter):
    """Writes a model with an open batch. Any `exporter` other than `dynamo` selects the legacy one."""
    if [*model.parameters()]:
        randomize(model)
    model.eval()
    inputs = [f"x{number}" for number in range(len(examples))]
    if exporter == "dynamo":
        shapes = tuple({0: torch.export.Dim("batch")} for _ in examples)
        program = torch.onnx.export(model, examples, dynamo=True, dynamic_shapes=shapes, input_names=inputs, verbose=False)
        program.save(path, external_data=False)
        forget_sources(path)
    else:
        axes = {name: {0: "batch"} for name in [*inputs, "y"]}
        names = dict(input_names=inputs, output_names=["y"], dynamic_axes=axes)
        torch.onnx.export(model, examples, path, dynamo=False, opset_version=17, **names)


def on_images(make, size, channels=3):
    """The function that writes a model of square images."""
    return lambda path, exporter: written(make(), (torch.randn(2, channels, size, size),), path, exporter)


def of_timm(name, size=224, norm="own", **arguments):
    return on_images(lambda: replace(timm.create_model(name, **arguments), norm), size)


def of_papers(name, norm):
    """A network of models/ with another normalizer."""
    return on_images(lambda: replace(build(name)[0], norm), 224)


def of_images(kind, config, result, size=224, **arguments):
    """A model of images of transformers."""
    return on_images(lambda: Read(kind(config(**arguments)), "pixel_values", result), size)


def of_text(kind, config, result="logits", length=128, read=Read, **arguments):
    """A model of token ids of transformers."""
    ids = torch.randint(3, 1000, (2, length))
    return lambda path, exporter: written(read(kind(config(**arguments)), "input_ids", result), (ids,), path, exporter)


def segformer(size, **arguments):
    arguments |= dict(num_labels=150) | EAGER
    return of_images(t.SegformerForSemanticSegmentation, t.SegformerConfig, "logits", size, **arguments)


def upsampled(channels, side=32):
    return on_images(lambda: upsampling(channels, channels), side, channels)


def attention(cached):
    examples = torch.randn(2, 32, 1, 64), torch.randn(2, 8, cached, 64), torch.randn(2, 8, cached, 64)
    return lambda path, exporter: written(GroupedAttention(), examples, path, exporter)


def step(kind, hidden, inner, heads, grouped, channels, window=None):
    """A step of a language model of two layers with a cache, a small vocabulary, and open extents."""
    sizes = dict(hidden_size=hidden, intermediate_size=inner, num_attention_heads=heads, num_key_value_heads=grouped)
    sizes |= dict(head_dim=channels, max_position_embeddings=8192, sliding_window=window)
    return lambda path, exporter: export_step(kind, path, exporter, sizes)


def with_norms(name, of, *arguments, **named):
    """A network with LN, UN and BN."""
    return {f"{name}, {norm.upper()}": of(*arguments, norm=norm, **named) for norm in ("ln", "un", "bn")}


def with_caches(name, *sizes):
    """A step with 1,024 and with 4,096 tokens in its cache."""
    return {f"{name}, {cached} cached": step(*sizes) for cached in (1024, 4096)}


B2 = dict(depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=768)
DPT = dict(hidden_size=384, intermediate_size=1536, num_attention_heads=6, backbone_out_indices=[0, 1, 2, 3]) | FOUR
DPT |= dict(image_size=224, neck_hidden_sizes=[48, 96, 192, 384], fusion_hidden_size=64)
BACKBONE = dict(depths=[1, 1, 1, 1], hidden_sizes=[96, 192, 384, 768], out_features=["stage1", "stage2", "stage3", "stage4"])
POOLED = dict(global_pool="avg", fc_norm=True)
SHALLOW = dict(depth=4)

FIRST = {
    "ViT-S, UN, class token": of_papers("vit_small_patch16_224", "un"),
    "SegFormer-B0, 512²": segformer(512),
    "DenseNet-121": of_timm("densenet121"),
    "upsampling, 128 channels": upsampled(128),
    "upsampling, 512 channels": upsampled(512),
}
ONE_TOKEN = {
    "ViT-B, 4 layers": of_timm("vit_base_patch16_224", **SHALLOW),
    "DeiT-S, distilled": of_timm("deit_small_distilled_patch16_224"),
    "DeiT-III-S": of_timm("deit3_small_patch16_224"),
    "T2T-ViT-14, LN": of_papers("t2t_vit_14", "ln"),
    "T2T-ViT-14, UN": of_papers("t2t_vit_14", "un"),
    "T2T-ViT-14, BN": of_papers("t2t_vit_14", "bn"),
    "CaiT-XXS-24": of_timm("cait_xxs24_224"),
    "CLIP, text, 6 layers": of_text(
        t.CLIPTextModelWithProjection, t.CLIPTextConfig, "text_embeds", 77, eos_token_id=2, **SIX
    ),
    "CLIP, images, 4 layers": of_images(
        t.CLIPVisionModelWithProjection, t.CLIPVisionConfig, "image_embeds", patch_size=16, **FOUR
    ),
    "SigLIP, text, 4 layers": of_text(t.SiglipTextModel, t.SiglipTextConfig, "pooler_output", 64, **FOUR),
    "SigLIP, images, 4 layers": of_images(t.SiglipVisionModel, t.SiglipVisionConfig, "pooler_output", **FOUR),
    "SigLIP of timm, images, 4 layers": of_timm("vit_base_patch16_siglip_224", **SHALLOW),
    "DINOv2-S with a head": of_timm("vit_small_patch14_dinov2", num_classes=1000, img_size=224),
    "BERT, 6 layers": of_text(t.BertForSequenceClassification, t.BertConfig, **SIX),
    "RoBERTa, 6 layers": of_text(t.RobertaForSequenceClassification, t.RobertaConfig, **SIX),
    "DistilBERT": of_text(t.DistilBertForSequenceClassification, t.DistilBertConfig, **EAGER),
    "GPT-2, last logits, 4 layers": of_text(t.GPT2LMHeadModel, t.GPT2Config, read=Last, n_layer=4, use_cache=False, **EAGER),
}
MEANS = {
    **with_norms("ViT-S, mean and fc_norm", of_timm, "vit_small_patch16_224", class_token=False, **POOLED),
    **with_norms("MAE, ViT-B of 4 layers", of_timm, "vit_base_patch16_224", **POOLED, **SHALLOW),
    **with_norms("BEiT-B, 4 layers", of_timm, "beit_base_patch16_224", **SHALLOW),
    **with_norms("Swin-T", of_timm, "swin_tiny_patch4_window7_224"),
}
IMAGES = {
    "SegFormer-B2, 256²": segformer(256, **B2),
    "UPerNet on ConvNeXt of 4 blocks, 384²": of_images(
        t.UperNetForSemanticSegmentation, t.UperNetConfig, "logits", 384,
        backbone_config=t.ConvNextConfig(**BACKBONE), hidden_size=256, num_labels=150, use_auxiliary_head=False,
    ),
    "DPT on ViT-S of 4 layers, 224²": of_images(t.DPTForDepthEstimation, t.DPTConfig, "predicted_depth", **DPT),
    "FPN, 256²": on_images(FPN, 256),
    "neck of YOLOv8-S, 320²": on_images(Neck, 320),
    "U-Net, 128²": on_images(UNet, 128),
    "decoder of an autoencoder, 16² to 128²": on_images(decoder, 16, channels=4),
    "ESRGAN, 3 dense blocks, 32²": on_images(esrgan, 32),
    "Inception-v3": of_timm("inception_v3", 299),
    **{f"upsampling from 64², {channels} channels": upsampled(channels, 64) for channels in (64, 128)},
}
ATTENTION = {f"attention of a token, {cached} cached": attention(cached) for cached in (1024, 4096)}
STEPS = {
    **with_caches("Llama-3.2-1B", "llama", 2048, 8192, 32, 8, 64),
    **with_caches("Qwen3-1.7B", "qwen3", 2048, 6144, 16, 8, 128),
    **with_caches("Ministral-3B", "mistral", 3072, 9216, 32, 8, 128),
    **with_caches("Gemma-3-4B", "gemma3_text", 2560, 10240, 8, 4, 256, 8192),
}
BOTH = {f"{name}, dynamo": write for name, write in FIRST.items()}
NETWORKS = FIRST | BOTH | ONE_TOKEN | MEANS | IMAGES | ATTENTION | STEPS


def export(network, path):
    """Writes a network of `NETWORKS`."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        NETWORKS[network](path, "dynamo" if network in BOTH else "legacy")


def sizes(network):
    """The extents of open axes other than the batch, by name."""
    if network not in STEPS:
        return {}
    cached = int(network.split()[-2])
    return dict(tokens=1, past=cached, total=cached + 1)
