"""Sweeps of Floodway's simulator on a Ray cluster.

The lab's binary knows what the runs are, executes each of them, and makes the table. This package says where: each run
is a Ray task. Outcomes go into the journal beside the table, as those of the local engine do.
"""

from .journal import Journal
from .lab import Lab
from .schedule import run

__all__ = ["Journal", "Lab", "run"]
