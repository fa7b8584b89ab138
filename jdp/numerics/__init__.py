"""Floating point where a guarantee rests on it.

| what | where |
|---|---|
| sums of many contributions that keep their sensitivity | `compensated` |
| released noise without its low-order bits | `dither` |
"""
