"""The lab's binary."""

import json
import subprocess


class LabError(Exception):
    """The binary has failed; it says why."""


class Lab:
    """One sweep, as the binary sees it."""

    def __init__(self, binary, file, out, options=()):
        """`options` say which runs there are: `--seeds`, `--seed`, `--quick`."""
        self.binary = binary
        self._sweep = [binary, "sweep", file, "--out", out, *options]

    def left(self):
        """The runs that are not done, as the binary wants them back. Begins the journal if there is none."""
        done = subprocess.run([*self._sweep, "--list"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(done.stderr.strip())
        return [json.loads(line) for line in done.stdout.splitlines()]

    def collect(self):
        """Makes the table. Raises if runs have failed."""
        done = subprocess.run([*self._sweep, "--collect"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise LabError(done.stderr.strip())
        return done.stderr.strip()
