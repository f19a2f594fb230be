"""Without `cryptography`, which the extra `flower` brings, there are no secure sums to test."""

from importlib.util import find_spec

collect_ignore = (
    [] if find_spec("cryptography") else ["test_row_keeper.py", "test_secure_sums.py", "test_sum_keeper.py"]
)
