"""Random cropping and mirroring, drawn separately for every image of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

BORDER_SHARE = 8  # the black border is an eighth of the image's side: 4 pixels of 32


def draw_moves(count: int, size: Sequence[int], flip: bool, generator: torch.Generator) -> Tensor:
    """Draw how far down and right each crop begins in the bordered image, and whether it is
    mirrored (0 or 1). Returns [count, 3] int64. size: the images' height and width."""
    height, width = size
    limits = (2 * (height // BORDER_SHARE) + 1, 2 * (width // BORDER_SHARE) + 1, 2 if flip else 1)
    drawn = [torch.randint(limit, (count,), generator=generator) for limit in limits]
    return torch.stack(drawn, dim=1)


def moved(pixels: Tensor, moves: Tensor) -> Tensor:
    """Return the crop of each image with a black border, mirrored if its move says so.

    pixels: [k, B, C, H, W]. moves: [k, B, 3], as drawn by `draw_moves`.
    """
    height, width = pixels.shape[-2:]
    down, right = height // BORDER_SHARE, width // BORDER_SHARE
    bordered = functional.pad(pixels, (right, right, down, down))
    rows = moves[..., 0, None] + torch.arange(height, device=pixels.device)  # (k, B, H)
    columns = torch.arange(width, device=pixels.device).expand(*moves.shape[:2], width)
    columns = torch.where(moves[..., 2, None] == 1, columns.flip(2), columns) + moves[..., 1, None]
    clients, images = torch.meshgrid(
        torch.arange(len(pixels), device=pixels.device),
        torch.arange(pixels.shape[1], device=pixels.device),
        indexing="ij",
    )
    picked = bordered[
        clients[..., None, None], images[..., None, None], :, rows[..., None], columns[:, :, None]
    ]  # (k, B, H, W, C)
    return picked.movedim(4, 2)
