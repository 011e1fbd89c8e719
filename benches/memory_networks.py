"""The networks of benches/memory.py, with random weights, as ONNX files of fixed sizes."""

import subprocess

import torch


def networks():
    """For each network, by its name, a function that writes it to a path."""
    vit = "vit_small_patch16_224"
    rows = {f"ViT-S {norm.upper()}, 224², batch {batch}": zoo(norm, batch) for batch in (1, 8) for norm in ("un", "bn", "ln")}
    rows |= {
        "ViT-S, 4 blocks, 512²": vision(vit, 512, depth=4),
        "ViT-S, 4 blocks, 1024²": vision(vit, 1024, depth=4),
        "DINOv2-S, 4 blocks, 518²": vision("vit_small_patch14_dinov2", 518, depth=4),
        "ViT-B, 4 blocks, 384²": vision("vit_base_patch16_384", 384, depth=4),
        "SAM's encoder, 4 blocks, 1024²": vision("samvit_base_patch16", 1024, depth=4, global_attn_indexes=(1, 3)),
        "Swin-T, 512²": vision("swin_tiny_patch4_window7_224", 512),
        "MaxViT-T, 512²": vision("maxvit_tiny_tf_512", 512),
        "Whisper's encoder, 4 blocks, 1,500 frames": whisper,
        "BERT, 4 blocks, 512 tokens": bert(512),
        "BERT, 4 blocks, 2,048 tokens": bert(2048),
        "U-Net's transformer, 64² latents": unet,
        "cross attention, 1,024 queries, 4,096 keys": cross,
    }
    return rows


def zoo(norm, batch):
    """A ViT-S of 12 blocks from unfold's zoo, of a fixed batch."""

    def write(path):
        import onnx

        subprocess.run(["unfold", "zoo", f"vit-s.{norm}", "-o", path], check=True, capture_output=True)
        model = onnx.load(path)
        for value in [*model.graph.input, *model.graph.output]:
            value.type.tensor_type.shape.dim[0].dim_value = batch
        onnx.save(model, path)

    return write


def vision(name, size, **options):
    """A network of timm for images of `size`."""

    def write(path):
        import timm

        model = timm.create_model(name, img_size=size, num_classes=10, **options)
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = False
        export(model, torch.randn(1, 3, size, size), path)

    return write


def whisper(path):
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(encoder_layers=4, d_model=512, encoder_attention_heads=8, encoder_ffn_dim=2048)
    config._attn_implementation = "eager"
    export(First(WhisperEncoder(config)), torch.randn(1, 80, 3000), path)


def bert(tokens):
    """The layers of a BERT of four blocks, without the embedding of its words."""

    def write(path):
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertEncoder

        config = BertConfig(num_hidden_layers=4, max_position_embeddings=tokens)
        config._attn_implementation = "eager"
        export(First(BertEncoder(config)), torch.randn(1, tokens, 768), path)

    return write


def unet(path):
    export(Latents(), torch.randn(1, 320, 64, 64), path)


def cross(path):
    model = torch.nn.ModuleDict({"attend": Attend(256, 256, 8), "mlp": mlp(256, 1024)})
    model.forward = lambda queries, keys: model["mlp"](queries + model["attend"](queries, keys))
    export(model, (torch.randn(1, 1024, 256), torch.randn(1, 4096, 256)), path)


class First(torch.nn.Module):
    """The first output of a module of transformers."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, value):
        return self.inner(value)[0]


class Attend(torch.nn.Module):
    """Attention of `width` channels to values of `other` channels, as separate operators."""

    def __init__(self, width, other, heads):
        super().__init__()
        self.heads = heads
        self.queries = torch.nn.Linear(width, width)
        self.keys = torch.nn.Linear(other, width)
        self.values = torch.nn.Linear(other, width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, value, others):
        queries, keys, values = map(self.by_head, (self.queries(value), self.keys(others), self.values(others)))
        scores = (queries @ keys.transpose(-2, -1)) * (queries.shape[-1] ** -0.5)
        mixed = scores.softmax(-1) @ values
        return self.out(mixed.transpose(1, 2).flatten(2))

    def by_head(self, value):
        return value.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Latents(torch.nn.Module):
    """The transformer of a U-Net at its first level: attention over all latents and to 77 words, and a gated MLP."""

    def __init__(self, width=320, heads=8):
        super().__init__()
        self.normed = torch.nn.GroupNorm(32, width)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(3))
        self.own = Attend(width, width, heads)
        self.words = Attend(width, 768, heads)
        self.text = torch.nn.Parameter(torch.randn(1, 77, 768))
        self.gate = torch.nn.Linear(width, 8 * width)
        self.back = torch.nn.Linear(4 * width, width)

    def forward(self, image):
        value = self.normed(image).flatten(2).transpose(1, 2)
        normed = self.norms[0](value)
        value = value + self.own(normed, normed)
        value = value + self.words(self.norms[1](value), self.text)
        wide, gate = self.gate(self.norms[2](value)).chunk(2, -1)
        value = value + self.back(wide * torch.nn.functional.gelu(gate))
        return image + value.transpose(1, 2).unflatten(2, (64, 64))


def mlp(width, hidden):
    return torch.nn.Sequential(torch.nn.Linear(width, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, width))


def export(model, inputs, path):
    """Writes a network for inputs of these sizes, with weights and biases drawn at random."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model.eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.1)
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    torch.onnx.export(model, inputs, path, dynamo=False, opset_version=20)
