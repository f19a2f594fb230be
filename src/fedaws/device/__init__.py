"""Enrol, verify, identify and remove people on a device: NumPy, no torch, and nothing of the rest of the package."""

from fedaws.device.errors import DeviceError
from fedaws.device.gallery import Gallery, Person

__all__ = ["DeviceError", "Gallery", "Person"]
