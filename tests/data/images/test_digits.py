from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from fedproto_app.data.images.sources import load_pool
from fedproto_app.settings import DataSettings
from tests.data.images.made_images import pixels_of


def test_the_last_tenth_of_every_class_is_for_tests() -> None:
    pool = load_pool(DataSettings(source="digits"))
    assert pool.classes == tuple("0123456789")
    assert pool.shape == (1, 8, 8)
    # 178, 182, 177, 183, 181, 182, 181, 179, 174 and 180 digits in all
    assert np.bincount(pool.test.labels).tolist() == [17, 18, 17, 18, 18, 18, 18, 17, 17, 18]
    assert len(pool.train.labels) + len(pool.test.labels) == 1797
    positions = {
        split: np.array([int(name.removeprefix("digits/")) for name in pool_split.names])
        for split, pool_split in (("train", pool.train), ("test", pool.test))
    }
    for digit in range(10):
        last_train = positions["train"][pool.train.labels == digit].max()
        assert last_train < positions["test"][pool.test.labels == digit].min()
    the_set = load_digits()
    for split, pool_split in (("train", pool.train), ("test", pool.test)):
        np.testing.assert_array_equal(pool_split.labels, the_set.target[positions[split]])
        sixteenths = pixels_of(pool_split)[:, 0] / 255 * 16
        np.testing.assert_allclose(sixteenths, the_set.images[positions[split]], atol=0.04)
    assert pixels_of(pool.train).max() == 255
    order = np.array([5, 2])
    np.testing.assert_array_equal(pool.test.load(order).pixels, pixels_of(pool.test)[order])
