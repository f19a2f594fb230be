"""Enrol, verify, identify and remove people on a device: NumPy, no torch, and nothing of the rest of the package."""

from fedaws.device.errors import DeviceError
from fedaws.device.gallery import Gallery, Person
from fedaws.device.model import Device

__all__ = ["Device", "DeviceError", "Gallery", "Person"]
