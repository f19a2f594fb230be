"""Enrol, verify, identify and remove people on a device: NumPy, no torch, and nothing of the rest of the package."""

from fedaws.device.errors import DeviceError, DeviceWarning
from fedaws.device.gallery import Gallery
from fedaws.device.gallery_file import Person
from fedaws.device.model import Device

__all__ = ["Device", "DeviceError", "DeviceWarning", "Gallery", "Person"]
