"""Data sets, and users who hold them."""

from jdp.data.clients import (
  Examples,
  examples,
  group,
  partition_by_group,
  partition_by_label,
  partition_dirichlet,
  partition_iid,
)
from jdp.data.datasets import digits
from jdp.data.federated_sets.femnist import femnist
from jdp.data.federated_sets.stackoverflow import stackoverflow
from jdp.data.named_datasets import load
from jdp.data.packed import pack
from jdp.data.sources.parquet_files import parquet_source
from jdp.data.sources.source_users import clients_from_source
from jdp.data.text import python_modules, read_users, sequences, text_source, text_users
from jdp.data.user_tables import clients_from_arrays, clients_from_pairs, clients_from_table
from jdp.data.vocabulary import private_vocabulary, public_vocabulary

__all__ = [
  "Examples",
  "clients_from_arrays",
  "clients_from_pairs",
  "clients_from_source",
  "clients_from_table",
  "digits",
  "examples",
  "femnist",
  "group",
  "load",
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
]
