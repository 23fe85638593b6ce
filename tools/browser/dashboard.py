"""Every query of the dashboard, put to a Prometheus that scrapes a switch with busy VMs, an uplink and a path that loses: see tools/test-metrics."""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from cdp import wait
from web import Host

DASHBOARD = Path(__file__).resolve().parents[2] / "packaging/floodway/examples/floodway-dashboard.json"


def queries() -> Iterator[tuple[str, str]]:
    """Titles of panels and what they ask for, of all hosts and ports."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "5s")
            yield panel["title"], query.replace("$instance", ".*").replace("$port", ".*")


class Metrics:
    """`floodway metrics` of a host, at a loopback address."""

    def __init__(self, host: Host) -> None:
        command = [*host.floodway, "metrics", "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, env=host.environment, stdout=subprocess.PIPE, text=True)
        said = self.process.stdout.readline().strip()
        self.address = said.removeprefix("serving metrics on http://").removesuffix("/metrics")

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


class Prometheus:
    """Scrapes an address each second."""

    def __init__(self, target: str) -> None:
        self.directory = tempfile.TemporaryDirectory()
        config = Path(self.directory.name) / "prometheus.yml"
        job = {"job_name": "floodway", "static_configs": [{"targets": [target]}]}
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
        # It does not say which port it has got, so it is told one that was free just now.
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        options = [f"--config.file={config}", f"--storage.tsdb.path={self.directory.name}/data", f"--web.listen-address={self.address}"]
        self.process = subprocess.Popen(["prometheus", *options, "--log.level=error"])

    def __enter__(self) -> "Prometheus":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()
        self.directory.cleanup()

    def ask(self, query: str) -> list[str]:
        """The values that a query has now; none while there is no answer yet."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/query?" + urllib.parse.urlencode({"query": query}), timeout=30) as answer:
                return [series["value"][1] for series in json.load(answer)["data"]["result"]]
        except urllib.error.HTTPError as error:
            assert error.code == 503, f"{query}: {error.read().decode()}"
        except OSError:
            assert self.process.poll() is None, "Prometheus has ended"
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=Path, required=True, help="directory of floodway and examples/busy_host")
    arguments = parser.parse_args()
    with Host(arguments.programs, 20) as host:
        # What is divided has figures.
        subprocess.run([*host.floodway, "inbound", "--capacity", "100"], env=host.environment, check=True, stdout=subprocess.DEVNULL)
        with Metrics(host) as metrics, Prometheus(metrics.address) as prometheus:
            number = 0
            for number, (panel, query) in enumerate(queries(), 1):
                # NaN is a quantile of nothing.
                wait(f"data of {panel}: {query}", lambda: [value for value in prometheus.ask(query) if value != "NaN"], pause=0.5)
    print(f"{number} queries of the dashboard, all with data")


if __name__ == "__main__":
    sys.exit(main())
