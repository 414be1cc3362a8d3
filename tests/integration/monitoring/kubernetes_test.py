"""The manifests are valid by Kubernetes' own schemas, and fit each other and kvd."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

import ctest
import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor

FOLDER = Path(__file__).parents[3] / "deploy/kubernetes"
KVD = f"{os.environ['KVDTEST_BIN_DIR']}/kvd"


def documents(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((FOLDER / name).read_text()) if each]


class Manifests(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = {each["kind"]: each for each in documents("kvd.yaml")}
        self.pod = self.kvd["DaemonSet"]["spec"]["template"]["spec"]
        [self.engine] = documents("example-engine.yaml")

    def test_are_valid(self) -> None:
        version = kubernetes_validate.latest_version()
        for document in [*self.kvd.values(), self.engine]:
            kubernetes_validate.validate(document, version, strict=True)

    def test_a_wrong_one_is_not(self) -> None:
        wrong = copy.deepcopy(self.kvd["DaemonSet"])
        wrong["spec"]["template"]["spec"]["hostPid"] = True  # hostPID is the field
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)

    def test_the_monitor_is_valid_by_its_own_schema(self) -> None:
        def known(monitor: dict[str, Any]) -> dict[str, Any]:
            """What the schema has fields for: the models pass over the rest."""
            model = ServiceMonitor.model_validate(monitor)
            return dict(model.model_dump(mode="json", by_alias=True, exclude_unset=True))

        [monitor] = documents("servicemonitor.yaml")
        self.assertEqual(known(monitor), monitor)
        misspelt = copy.deepcopy(monitor)
        misspelt["spec"]["endpoints"][0]["intervall"] = "10s"
        self.assertNotEqual(known(misspelt), misspelt)
        wrong = copy.deepcopy(monitor)
        wrong["spec"]["endpoints"][0]["interval"] = "10 seconds"
        with self.assertRaisesRegex(ValueError, "interval"):
            known(wrong)

    def test_the_engine_finds_the_socket(self) -> None:
        [sockets] = [v for v in self.pod["volumes"] if v["name"] == "sockets"]
        [volume] = self.engine["spec"]["volumes"]
        self.assertEqual(sockets["hostPath"]["path"], volume["hostPath"]["path"])
        container = self.engine["spec"]["containers"][0]
        [mount] = container["volumeMounts"]
        self.assertEqual(container["env"], [
            {"name": "KVD_ENDPOINT", "value": f"{mount['mountPath']}/attach.sock"}])  # fmt: skip

    def test_the_monitor_finds_the_metrics(self) -> None:
        [monitor] = documents("servicemonitor.yaml")
        service = self.kvd["Service"]
        self.assertEqual(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])
        ports = {port["name"]: port for port in service["spec"]["ports"]}
        for endpoint in monitor["spec"]["endpoints"]:
            self.assertIn(endpoint["port"], ports)
        template = self.kvd["DaemonSet"]["spec"]["template"]
        self.assertEqual(service["spec"]["selector"], template["metadata"]["labels"])
        names = {port["name"]: port["containerPort"] for container in self.pod["containers"]
                 for port in container.get("ports", [])}  # fmt: skip
        listens = re.search(r"listen (\d+);", self.kvd["ConfigMap"]["data"]["nginx.conf"])
        assert listens is not None
        self.assertEqual(names[ports["metrics"]["targetPort"]], int(listens[1]))

    def test_the_configuration_is_one_and_fits_its_limit(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(self.kvd["ConfigMap"]["data"]["kvd.toml"])
            file.flush()
            unit = subprocess.run([KVD, "--config", file.name, "--print-unit"], text=True,
                                  capture_output=True, check=True, timeout=60).stdout  # fmt: skip
        needed = re.search(r"^MemoryMax=(\d+)", unit, re.M)
        assert needed is not None, unit
        limit = self.pod["containers"][0]["resources"]["limits"]["memory"]
        self.assertGreaterEqual(int(limit.removesuffix("Mi")) << 20, int(needed[1]))


if __name__ == "__main__":
    ctest.main()
