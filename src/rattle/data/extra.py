"""Extra and generated images to train on beside a dataset's own: a .npz with `image` and `label`.

`image` and `label` are the names under which generated images are published; `x_train` and `y_train`, or `x` and `y`,
will do as well.
"""

from pathlib import Path

from rattle.data.dataset import Dataset, Images, check_class_range
from rattle.data.npz import open_arrays, read_image_array, read_labels
from rattle.data.resize import scale_images
from rattle.errors import RattleError

KEYS = (("image", "label"), ("x_train", "y_train"), ("x", "y"))


def extra_images(path: Path, data: Dataset, side: int | None) -> Images:
    """The images of a file, to train on beside those of `data`; side: to scale them to, as `data` was."""
    if path.suffix != ".npz":
        raise RattleError(f"data.extra takes a .npz file, such as np.savez writes with image= and label=, got {path}")
    if not path.is_file():
        raise RattleError(f"there is no file of extra images at {path} (looked from {Path.cwd()})")
    with open_arrays(path) as arrays:
        keys = next((keys for keys in KEYS if set(keys) <= set(arrays)), None)
        if keys is None:
            found = ", ".join(arrays) or "nothing"
            raise RattleError(f"{path} holds {found}; extra images should be under image and label, or under x and y")
        y = read_labels(arrays[keys[1]], f"{path}: {keys[1]}")
        check_class_range(y, len(data.classes), f"{path}: {keys[1]}")
        images = read_image_array(arrays, keys[0], y, path)
    if side:
        images = scale_images(images, side)
    own, extra = list(data.train.shape[1:]), list(images.shape[1:])
    if own != extra:
        raise RattleError(f"{path}: extra images are {extra}, those of {data.name} {own} (channels, height, width)")
    return images
