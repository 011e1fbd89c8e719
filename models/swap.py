"""Puts a normalizer of a given kind in the place of every LayerNorm of a network, and gives it random statistics."""

import math

import torch
from timm.layers import LayerNorm2d, RmsNorm
from torch import nn

import normalizers

ONLINE = (nn.LayerNorm, nn.RMSNorm, RmsNorm)


def sites(model):
    """The names of the normalizers that `replace` replaces, in the order of the modules."""
    return [name for name, module in model.named_modules() if isinstance(module, ONLINE)]


def replace(model, kind, options=lambda site: {}):
    """Replaces every LayerNorm and RMSNorm of `model` by a normalizer of `kind`, in place, and returns the model.

    `options` gives the keyword arguments of one site by its name, or None to leave the site as it is. The kind "own"
    leaves all as they are. Raises ValueError where there is nothing to replace.
    """
    if kind == "own":
        return model
    keywords = {site: options(site) for site in sites(model)}
    chosen = {site: given for site, given in keywords.items() if given is not None}
    if not chosen:
        raise ValueError(f"{type(model).__name__} has no normalizer that {kind} can replace")
    for site, given in chosen.items():
        norm = model.get_submodule(site)
        channels_first = isinstance(norm, LayerNorm2d)
        model.set_submodule(site, normalizers.make(kind, norm.normalized_shape[0], channels_first, **given))
    return model


def randomize(model, seed=0):
    """Moves every parameter and running statistic far away from where initialization leaves it, and returns the model.

    A network that was only initialized hides mistakes: gammas are 1, biases 0, LayerScale 1e-5, running statistics
    those of the identity, and the branches small against the residual stream. Here weights become N(0, v / fan-in), v
    being 1/2, but less in a deep network, whose residual stream would grow beyond what float32 can compare. Of all
    other parameters those that are one number throughout are drawn anew, scales as +-[0.5, 1.5] and shifts
    as N(0, 0.2^2). Running means become N(0, 0.3^2), running variances log-normal round 1.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        weights = [module.weight for module in model.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]
        variance = min(1 / 2, 16 / len(weights))
        for weight in weights:
            weight.normal_(0, (variance / weight[0].numel()) ** 0.5, generator=generator)
        for value in model.parameters():
            if (value == value.flatten()[0]).all():
                noise = torch.randn(value.shape, generator=generator)
                scale = noise.sign() * (0.5 + torch.rand(value.shape, generator=generator))
                value.copy_(scale if value.any() else 0.2 * noise)
        for name, value in model.named_buffers():
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith("running_mean"):
                value.copy_(0.3 * noise)
            elif name.endswith(("running_var", "running_phi")):
                value.copy_((math.log(2) * noise).exp())
    return model
