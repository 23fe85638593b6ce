"""The command: `floodway-sweep`, also started by `floodway-lab sweep --engine ray`."""

import argparse
import os
import shutil
import sys

import ray

from . import schedule
from .journal import Journal
from .lab import Lab, LabError

# Ray waits 30 s for itself to be up. A machine that has much else to do may need longer.
STARTS = 3


def arguments(words):
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="floodway-sweep", description="Run a sweep on a Ray cluster.")
    parser.add_argument("file", help="experiment that has a simulated form")
    parser.add_argument("--out", required=True, help="the table; a sweep that was stopped goes on")
    parser.add_argument("--seeds", default="1", help="how many seeds, each with all runs")
    parser.add_argument("--seed", default="1", help="the first seed")
    parser.add_argument("--quick", action="store_true", help="make runs shorter")
    parser.add_argument("--binary", default="floodway-lab", help="the lab's binary [floodway-lab in PATH]")
    parser.add_argument("--address", help="a Ray cluster [RAY_ADDRESS; else a Ray of this machine]")
    parser.add_argument("--workers", type=int, help="processors of a Ray of this machine [all]")
    return parser.parse_args(words)


def connect(address, workers):
    """To the cluster, or to a Ray of its own that ends with this process."""
    address = address or os.environ.get("RAY_ADDRESS")
    if address:
        ray.init(address=address, log_to_driver=False)
        return
    for left in reversed(range(STARTS)):
        try:
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
            return
        except Exception as error:  # Ray has no narrower kind for it.
            ray.shutdown()
            if left == 0:
                raise
            print(f"Ray has not started, once more: {error}", file=sys.stderr)


def main(words=None):
    """Runs the sweep; the exit code is 1 if runs have failed, 2 if it could not be done at all."""
    args = arguments(words)
    options = ["--seeds", args.seeds, "--seed", args.seed] + (["--quick"] if args.quick else [])
    binary = shutil.which(args.binary)
    if binary is None:
        sys.exit(f"{args.binary} is not there: cargo build --release -p floodway-lab")
    lab = Lab(binary, args.file, args.out, options)
    try:
        tasks = lab.left()
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    if tasks:
        connect(args.address, args.workers)
        ended = 0

        def progress(task, done):
            nonlocal ended
            ended += 1
            word = "" if done else " FAILED"
            print(f"{ended}/{len(tasks)} run {task['run']}, seed {task['task']['seed']}{word}", file=sys.stderr)

        with Journal(args.out) as journal:
            schedule.run(binary, journal, tasks, progress)
        ray.shutdown()
    try:
        print(lab.collect(), file=sys.stderr)
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
