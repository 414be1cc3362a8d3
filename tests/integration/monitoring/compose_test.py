"""The compose file mounts what is there, and what it mounts names what it starts. No container runs here."""

from __future__ import annotations

import unittest
from pathlib import Path
from typing import Any

import ctest
import yaml

FOLDER = Path(__file__).parents[3] / "deploy/compose"


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """The mounted files of the repository, by their path in the container."""
    parts = [volume.split(":") for volume in service["volumes"]]
    return {inside: (FOLDER / outside).resolve() for outside, inside, *_ in parts if outside.startswith(".")}


def outside(service: dict[str, Any], inside: str) -> Path:
    """The file that a container sees there."""
    at, path = next((at, path) for at, path in mounts(service).items() if inside.startswith(at))
    return Path(f"{path}{inside.removeprefix(at)}")


class Compose(unittest.TestCase):
    def setUp(self) -> None:
        services = read("compose.yaml")["services"]
        self.prometheus, self.grafana = services["prometheus"], services["grafana"]
        self.flags = dict(flag.removeprefix("--").split("=") for flag in self.prometheus["command"])

    def test_what_is_mounted_is_there(self) -> None:
        for service in (self.prometheus, self.grafana):
            self.assertTrue(mounts(service))
            for path in mounts(service).values():
                self.assertTrue(path.exists(), path)

    def test_prometheus_is_started_with_the_rules(self) -> None:
        config = outside(self.prometheus, self.flags["config.file"])
        for rules in yaml.safe_load(config.read_text())["rule_files"]:
            self.assertTrue(config.with_name(rules).is_file(), rules)

    def test_grafana_finds_prometheus_and_the_dashboards(self) -> None:
        source = read("datasources.yaml")["datasources"][0]
        self.assertEqual(source["url"], f"http://{self.flags['web.listen-address']}")
        folder = outside(self.grafana, read("dashboards.yaml")["providers"][0]["options"]["path"])
        self.assertEqual({each.name for each in folder.glob("*.json")}, {"glance.json", "kvd.json"})
        home = self.grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        self.assertTrue(outside(self.grafana, home).is_file())


if __name__ == "__main__":
    ctest.main()
