"""Scale the images of a dataset that come as arrays, as the pictures of a folder are scaled while they are decoded."""

import hashlib
import math
from dataclasses import replace

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images
from rattle.data.mmap_cache import MmapCache, cache_key
from rattle.data.pictures import resized

BLOCK = 256  # images scaled at a time, so that a large part is never whole in memory


def scale(data: Dataset, side: int, cache: MmapCache) -> Dataset:
    """The dataset with images side x side (bilinear, antialiased); as it is if they have that size."""
    if tuple(data.test.shape[2:]) == (side, side):
        return data
    return replace(data, train=scale_images(data.train, side, cache), test=scale_images(data.test, side, cache))


def scale_images(images: Images, side: int, cache: MmapCache) -> Images:
    shape = (len(images), images.shape[1], side, side)
    parts = (images[index].x.numpy() for index in torch.arange(len(images)).split(BLOCK) if len(index))
    blocks = (np.stack([resized(x, side) for x in part]) for part in parts)
    key = cache_key("resize", side, content(images)) if math.prod(shape) > cache.limit else "resize"
    return cache.images(shape, blocks, images.y, key=key)


def content(images: Images) -> str:
    """A checksum of the images: a file in the cache has to belong to them."""
    found = hashlib.sha256(str(list(images.shape)).encode())
    for index in torch.arange(len(images)).split(BLOCK):
        found.update(images[index].x.numpy().tobytes())
    return found.hexdigest()
