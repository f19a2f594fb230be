"""How this process was started: alone, or as one of several by torchrun."""

import os


def started_ranks() -> int:
    """How many processes torchrun has started; 1 without it."""
    world = os.environ.get("WORLD_SIZE", "1")
    return int(world) if world.isdecimal() and "RANK" in os.environ else 1
