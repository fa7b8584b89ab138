"""Data sets, and users who hold them."""

from jdp.data.clients import (
  Examples,
  examples,
  group,
  partition_by_group,
  partition_by_label,
  partition_iid,
)
from jdp.data.datasets import Dataset, digits, load, mnist
from jdp.data.packed import PackedUsers, pack
from jdp.data.text import UserText, python_modules, read_users, sequences, text_users
from jdp.data.vocabulary import Vocabulary, private_vocabulary, public_vocabulary, vocabulary_event

__all__ = [
  "Dataset",
  "Examples",
  "PackedUsers",
  "UserText",
  "Vocabulary",
  "digits",
  "examples",
  "group",
  "load",
  "mnist",
  "pack",
  "partition_by_group",
  "partition_by_label",
  "partition_iid",
  "private_vocabulary",
  "public_vocabulary",
  "python_modules",
  "read_users",
  "sequences",
  "text_users",
  "vocabulary_event",
]
