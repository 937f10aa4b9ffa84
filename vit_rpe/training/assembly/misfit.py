"""The reason why weights do not fit a model, in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice

from torch import nn

from vit_rpe.program import typed

from ..record.saved_model import Shape

_TOKENS = {"cls_token": "a class token", "reg_token": "register tokens"}
_OURS = re.compile(r"\.attn\.(rpe|border|features)\.")  # what timm's attention does not have
_RESIZED = re.compile(r"pos_embed$|\.rpe\.|patch_embed\.proj\.weight$")  # to the model's size
_SHOWN = 3


def is_of(name: str, modules: Sequence[str]) -> bool:
    """Return whether an array belongs to one of these modules."""
    return any(name.startswith(f"{module}.") for module in modules)


def misfit(shapes: Mapping[str, Shape], model: nn.Module, heads: Sequence[str]) -> str | None:
    """Say what keeps arrays of these shapes out of a model; classifiers do not count."""
    own = {name: x.shape for name, x in model.state_dict().items() if not is_of(name, heads)}
    given = {name: shape for name, shape in shapes.items() if not is_of(name, heads)}
    missing = [name for name in own if name not in given]
    for token, words in _TOKENS.items():
        if (token in given) != (token in own) and len(missing) < len(own) / 2:
            has, lacks = ("weights", "model") if token in given else ("model", "weights")
            return f"the {has} have {words}, the {lacks} not".replace("model have", "model has")
    if missing and all(_OURS.search(name) for name in missing):
        return (
            "these are weights of a ViT of timm's, without masks; "
            f"{typed('convert')} makes a Performer of them"
        )
    parts = [
        listed("the model has {} arrays that the weights lack", missing),
        listed("the weights have {} that the model lacks", [n for n in given if n not in own]),
        listed("{} have another shape", _other_shapes(own, given)),
    ]
    return "; ".join(filter(None, parts)) or None


def _other_shapes(own: Mapping[str, Shape], given: Mapping[str, Shape]) -> list[str]:
    return [
        f"{name} {tuple(given[name])} for {tuple(shape)}"
        for name, shape in own.items()
        if name in given and tuple(given[name]) != tuple(shape) and not _RESIZED.search(name)
    ]


def listed(words: str, names: Sequence[str]) -> str:
    """Return the number and the first names of some arrays, or nothing if there are none."""
    shown = ", ".join(islice(names, _SHOWN)) + (", ..." if len(names) > _SHOWN else "")
    return f"{words.format(len(names))} ({shown})" if names else ""
