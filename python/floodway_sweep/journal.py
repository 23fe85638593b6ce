"""The journal of a sweep: the lab's binary begins and reads it, the engine appends to it."""

import fcntl
import json
import os


class Journal:
    """Appends a line per run that has ended. Only one process may do that at a time."""

    def __init__(self, out):
        """The journal of the sweep whose table goes to `out`."""
        self.path = f"{out}.journal"

    def __enter__(self):
        self._file = open(self.path, "ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise SystemExit(f"{self.path}: another process is doing this sweep") from None
        return self

    def __exit__(self, *_):
        self._file.close()

    def append(self, line):
        """A line as the binary printed it. One write, so that a kill leaves at most the last line incomplete."""
        os.write(self._file.fileno(), line.rstrip("\n").encode() + b"\n")

    def failed(self, run, reason):
        """A run that did not even get so far as to print a line."""
        self.append(json.dumps({"run": run, "failed": reason}))
