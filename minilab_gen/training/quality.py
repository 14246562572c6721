"""How well a model predicts a text, in bits per byte, which models with other tokenizers can be compared by."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from minilab_gen.generate import Model


@torch.no_grad()
def bits_per_byte(model: Model, row: Tensor, size: int, window: int) -> float:
    """Bits per byte of a text of ``size`` bytes as ids (length,), the first of which is not judged.

    Every token is judged with at least half a window before it, but those of the text's first half window.
    """
    nats, judged = 0.0, 1
    while judged < len(row):
        start = max(0, judged - window // 2)
        ids = row[start : start + window + 1]
        logits, _ = model(ids[None, :-1])
        fresh = judged - start - 1  # tokens of this window that an earlier one has judged
        nats += float(F.cross_entropy(logits[0, fresh:], ids[1 + fresh :], reduction="sum"))
        judged = start + len(ids)
    return nats / math.log(2) / size
