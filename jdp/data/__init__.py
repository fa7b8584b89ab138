"""Data sets, and users who hold them."""

from jdp.data.clients import Examples, examples, group, partition_by_group, partition_by_label, partition_iid
from jdp.data.datasets import Dataset, digits, load, mnist
from jdp.data.packed import PackedUsers, pack

__all__ = [
  "Dataset",
  "Examples",
  "PackedUsers",
  "digits",
  "examples",
  "group",
  "load",
  "mnist",
  "pack",
  "partition_by_group",
  "partition_by_label",
  "partition_iid",
]
