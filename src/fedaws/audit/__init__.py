"""Attacks as measurements: what each side of a federation can learn or spoil, with intervals and chance levels."""

from fedaws.audit.audit import ATTACKS, Findings, audit

__all__ = ["ATTACKS", "Findings", "audit"]
