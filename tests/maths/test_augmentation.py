"""Moves of images, pixel by pixel."""

from __future__ import annotations

import torch

from fedproto_app.maths.augmentation import draw_moves, moved


def test_a_move_shifts_over_a_black_border_and_mirrors() -> None:
    """8×8 images have a border of 1: moves of (1, 1) leave an image where it was."""
    image = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 1, 8, 8).expand(1, 3, 1, 8, 8)
    moves = torch.tensor([[[1, 1, 0], [0, 2, 0], [1, 1, 1]]])
    still, shifted, mirrored = moved(image, moves)[0, :, 0]
    original = image[0, 0, 0]
    assert torch.equal(still, original)
    assert torch.equal(shifted[1:, :7], original[:7, 1:])
    assert shifted[0].sum() == shifted[:, 7].sum() == 0
    assert torch.equal(mirrored, original.flip(1))


def test_moves_stay_within_the_border_and_mirror_only_where_asked() -> None:
    """32×48 pixels have borders of 4 and 6."""
    drawn = draw_moves(2000, (32, 48), True, torch.Generator().manual_seed(0))
    assert [set(drawn[:, kind].tolist()) for kind in range(3)] == [
        set(range(9)),
        set(range(13)),
        {0, 1},
    ]
    plain = draw_moves(100, (32, 48), False, torch.Generator().manual_seed(0))
    assert plain[:, 2].sum() == 0
    assert torch.equal(
        plain[:, 0], draw_moves(100, (32, 48), True, torch.Generator().manual_seed(0))[:, 0]
    )
