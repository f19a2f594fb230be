"""Handwritten digits, 8 × 8 pixels, as shipped with scikit-learn: 1,797 examples of 10 classes, a quarter held out."""

import numpy as np
from numpy.typing import NDArray

Arrays = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]


def digits() -> Arrays:
    """(x_train, y_train, x_test, y_test); the split is the same for every seed."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - a second that only these data need wait for
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    x, y = load_digits(return_X_y=True)
    x = (x / 16.0).astype(np.float32)
    x_train, x_test, y_train, y_test = train_test_split(
        x, y.astype(np.int64), test_size=0.25, random_state=0, stratify=y
    )
    return x_train, y_train, x_test, y_test
