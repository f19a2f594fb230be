"""Settings of all tests."""

import torch
from hypothesis import settings

# No deadlines on a noisy machine, and the same examples in every run.
settings.register_profile("fedaws", deadline=None, derandomize=True)
settings.load_profile("fedaws")
torch.set_num_threads(1)  # tests run in parallel processes
