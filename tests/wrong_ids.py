"""Ids that no model with a vocabulary of 11 and a block of 8 tokens can read, and what is said of each."""

import torch
from torch import Tensor

WRONG: dict[str, tuple[Tensor, str]] = {
    "1-D": (
        torch.tensor([2, 3, 4]),
        r"token ids are \(B, T\), a row per text, not of shape \(3,\); for one text: ids.view",
    ),
    "0-D": (torch.tensor(2), r"token ids are \(B, T\), a row per text, not of shape \(\)"),
    "3-D": (torch.ones(1, 2, 3).long(), r"token ids are \(B, T\), a row per text, not of shape \(1, 2, 3\)"),
    "float": (torch.tensor([[2.0, 3.0]]), "token ids are whole numbers, not torch.float32"),
    "bool": (torch.tensor([[True, False]]), "token ids are whole numbers, not torch.bool"),
    "int16": (
        torch.tensor([[2, 3]]).short(),
        r"token ids are torch.int64 or torch.int32, not torch.int16; .*ids.long\(\)",
    ),
    "uint16": (torch.tensor([[2, 3]]).to(torch.uint16), r"not torch.uint16; .*ids.long\(\)"),
    "beyond": (torch.tensor([[2, 11]]), "token id 11 is not in the model's vocabulary of 11 tokens, 0 to 10"),
    "negative": (torch.tensor([[2, -1]]), "token id -1 is not in the model's vocabulary of 11 tokens"),
    "empty": (torch.empty(1, 0, dtype=torch.int64), r"there are no token ids: their shape is \(1, 0\)"),
    "no rows": (torch.empty(0, 3, dtype=torch.int64), r"there are no token ids: their shape is \(0, 3\)"),
    "too long": (torch.full((1, 9), 2), "9 tokens are more than the model's block_size of 8"),
}
