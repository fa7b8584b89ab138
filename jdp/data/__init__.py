"""Data sets, and users who hold them."""

from jdp.data.adult_table import adult
from jdp.data.cifar10_images import cifar10
from jdp.data.clients import (
  Examples,
  examples,
  group,
  partition_by_group,
  partition_by_label,
  partition_dirichlet,
  partition_iid,
)
from jdp.data.datasets import Dataset, digits, mnist
from jdp.data.federated_sets.femnist import femnist
from jdp.data.federated_sets.stackoverflow import stackoverflow
from jdp.data.named_datasets import arrays, load
from jdp.data.packed import PackedUsers, pack
from jdp.data.sources.parquet_files import parquet_source
from jdp.data.sources.source_users import SourceUsers, clients_from_source
from jdp.data.text import (
  UserText,
  python_modules,
  read_users,
  sequences,
  text_source,
  text_users,
)
from jdp.data.user_tables import clients_from_arrays, clients_from_pairs, clients_from_table
from jdp.data.vocabulary import Vocabulary, private_vocabulary, public_vocabulary, vocabulary_event

__all__ = [
  "Dataset",
  "Examples",
  "PackedUsers",
  "SourceUsers",
  "UserText",
  "Vocabulary",
  "adult",
  "arrays",
  "cifar10",
  "clients_from_arrays",
  "clients_from_pairs",
  "clients_from_source",
  "clients_from_table",
  "digits",
  "examples",
  "femnist",
  "group",
  "load",
  "mnist",
  "pack",
  "parquet_source",
  "partition_by_group",
  "partition_by_label",
  "partition_dirichlet",
  "partition_iid",
  "private_vocabulary",
  "public_vocabulary",
  "python_modules",
  "read_users",
  "sequences",
  "stackoverflow",
  "text_source",
  "text_users",
  "vocabulary_event",
]
