"""Scale the images of a dataset that come as arrays, as the pictures of a folder are scaled while they are decoded."""

from dataclasses import replace

import numpy as np
import torch

from rattle.data.dataset import Dataset, Images


def scale(data: Dataset, side: int) -> Dataset:
    """The dataset with images side x side (bilinear, antialiased)."""
    return replace(data, train=scale_images(data.train, side), test=scale_images(data.test, side))


def scale_images(images: Images, side: int) -> Images:
    """Each channel by Pillow, which gives the same bytes for a picture of several channels; as is at that size."""
    if images.shape[2:] == (side, side):
        return images
    from PIL import Image

    n, channels = images.shape[:2]
    scaled = np.empty((n * channels, side, side), np.uint8)
    for i, channel in enumerate(images.x.flatten(0, 1).numpy()):
        scaled[i] = np.asarray(Image.fromarray(channel).resize((side, side), Image.Resampling.BILINEAR))
    return Images(torch.from_numpy(scaled).view(n, channels, side, side), images.y)
