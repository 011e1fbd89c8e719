"""The ViT of the DTN paper (section A.1): the class token joins the patches only after `patch_blocks` blocks."""

import torch
from timm.models.vision_transformer import VisionTransformer


class DTNViT(VisionTransformer):
    """[B, 3, S, S] -> [B, classes]. The first blocks see patches alone, so a normalizer of grids can stand there."""

    def __init__(self, patch_blocks=10, depth=12, **arguments):
        super().__init__(depth=depth, no_embed_class=True, **arguments)
        self.patch_blocks = min(patch_blocks, depth - 1)

    def example_inputs(self):
        return {"x": torch.randn(2, 3, *self.patch_embed.img_size)}

    def forward(self, x):
        x = self.patch_embed(x) + self.pos_embed
        x = self.blocks[: self.patch_blocks](x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), 1)
        x = self.blocks[self.patch_blocks :](x)
        return self.forward_head(self.norm(x))
