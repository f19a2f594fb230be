"""Oracles that are not federated at all: one place has all examples, and all labels of each."""
