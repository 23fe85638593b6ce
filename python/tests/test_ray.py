"""A sweep of 200 short runs under a Ray of two workers. `FLOODWAY_LAB` is the lab's binary."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

RUNS = 200
BINARY = os.environ["FLOODWAY_LAB"]
EXPERIMENT = pathlib.Path(__file__).parents[2] / "crates/floodway-lab/tests/data/short-sweep.toml"
SEEDS = ["--seeds", "20"]


def on_ray(out):
    """The command of a sweep on a Ray of two workers."""
    words = [sys.executable, "-m", "floodway_sweep", str(EXPERIMENT), "--out", str(out), "--binary", BINARY]
    return [*words, *SEEDS, "--workers", "2"]


def ended(out):
    """The runs in the journal, in the order in which they ended."""
    journal = pathlib.Path(f"{out}.journal")
    lines = journal.read_text().splitlines(keepends=True)[1:] if journal.exists() else []
    return [json.loads(line)["run"] for line in lines if line.endswith("\n")]


class Sweeps(unittest.TestCase):
    """Against the table that the local engine makes."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = pathlib.Path(directory.name)
        local = self.dir / "local.parquet"
        subprocess.run([BINARY, "sweep", str(EXPERIMENT), *SEEDS, "--out", str(local)], check=True, capture_output=True)
        self.expected = local.read_bytes()

    def test_the_table_is_that_of_the_local_engine(self):
        out = self.dir / "ray.parquet"
        subprocess.run(on_ray(out), check=True)
        self.assertEqual(out.read_bytes(), self.expected)
        self.assertEqual(sorted(ended(out)), list(range(RUNS)))

    def test_a_sweep_that_is_killed_does_only_the_rest(self):
        out = self.dir / "killed.parquet"
        first = subprocess.Popen(on_ray(out), start_new_session=True)
        while len(ended(out)) < RUNS // 2 and first.poll() is None:
            time.sleep(0.02)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        before = ended(out)
        subprocess.run(on_ray(out), check=True)
        self.assertEqual(ended(out)[: len(before)], before)
        self.assertEqual(sorted(ended(out)), list(range(RUNS)))
        self.assertEqual(out.read_bytes(), self.expected)


if __name__ == "__main__":
    unittest.main()
