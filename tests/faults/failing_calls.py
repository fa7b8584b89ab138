"""Calls of the operating system that fail, each in turn."""

import itertools
import os

CALLS = ("open", "fsync", "replace", "rename", "mkdir", "ftruncate")


def fail_at(monkeypatch, number, error):
  """Makes the `number`-th call that changes the disk fail; returns what counts them."""
  left = itertools.count(number, -1)

  def failing(original):
    def call(*arguments, **options):
      if next(left) == 1:
        raise error
      return original(*arguments, **options)

    return call

  for name in CALLS:
    monkeypatch.setattr(os, name, failing(getattr(os, name)))
  return left
