"""Which run goes where, and what becomes of it.

The binary is put into Ray's object store and each machine unpacks it once, so that machines need no installation. As many
runs are handed to Ray as keep all of its processors busy, and no more: a sweep may have more runs than fit into the
queue of a scheduler. A run that fails, or whose machine goes away, is tried again.
"""

import hashlib
import json
import os
import subprocess
import tempfile

import ray

# As the local engine.
RETRIES = 2
# Runs handed over per processor of the cluster.
AHEAD = 2


def unpack(program, digest):
    """The binary in a file of this machine, fetched and written once."""
    path = os.path.join(tempfile.gettempdir(), f"floodway-lab-{os.getuid()}-{digest}")
    if not os.path.exists(path):
        handle, unfinished = tempfile.mkstemp(dir=tempfile.gettempdir())
        with os.fdopen(handle, "wb") as file:
            file.write(ray.get(program))
        os.chmod(unfinished, 0o700)
        # Whoever is second replaces the same by the same.
        os.replace(unfinished, path)
    return path


@ray.remote(num_cpus=1, max_retries=RETRIES)
def execute(box, digest, task):
    """Executes one run: whether it was done, and the journal's line or the last words."""
    done = subprocess.run(
        [unpack(box[0], digest), "sweep-task"], input=task, capture_output=True, text=True, check=False
    )
    return done.returncode == 0, done.stdout or done.stderr


def run(binary, journal, tasks, progress):
    """Executes `tasks` on the Ray that is connected; every outcome goes to the journal."""
    with open(binary, "rb") as file:
        content = file.read()
    digest = hashlib.sha256(content).hexdigest()[:16]
    # In a list the reference stays one, and only who lacks the file fetches it.
    box = [ray.put(content)]
    waiting = [(task, 0) for task in reversed(tasks)]
    under_way = {}
    while waiting or under_way:
        processors = max(1, int(ray.cluster_resources().get("CPU", 1)))
        while waiting and len(under_way) < AHEAD * processors:
            task, attempt = waiting.pop()
            under_way[execute.remote(box, digest, json.dumps(task))] = (task, attempt)
        ready, _ = ray.wait(list(under_way), num_returns=1)
        for reference in ready:
            task, attempt = under_way.pop(reference)
            done, said = outcome(reference)
            if not done and attempt < RETRIES:
                waiting.append((task, attempt + 1))
                continue
            if said.lstrip().startswith("{"):
                journal.append(said)
            else:
                journal.failed(task["run"], said.strip() or "no word")
            progress(task, done)


def outcome(reference):
    """What a task gave back, or why Ray lost it."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        return False, f"{type(error).__name__}: {error}"
