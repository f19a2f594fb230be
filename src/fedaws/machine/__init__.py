"""What the computer is like: threads and memory."""
