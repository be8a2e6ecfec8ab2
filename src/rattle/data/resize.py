"""Scale the images of a dataset that come as arrays, as the pictures of a folder are scaled while they are decoded."""

from dataclasses import replace

import torch

from rattle.data.dataset import Dataset, Images
from rattle.data.pictures import resized


def scale(data: Dataset, side: int) -> Dataset:
    """The dataset with images side x side (bilinear, antialiased); as it is if they have that size."""
    if tuple(data.test.shape[2:]) == (side, side):
        return data
    return replace(data, train=scale_images(data.train, side), test=scale_images(data.test, side))


def scale_images(images: Images, side: int) -> Images:
    x = torch.empty((len(images), images.shape[1], side, side), dtype=torch.uint8)
    for i, image in enumerate(images.x):
        x[i] = torch.from_numpy(resized(image.numpy(), side))
    return Images(x, images.y)
