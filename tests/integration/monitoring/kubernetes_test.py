"""The chart and the manifests are valid by Kubernetes' own schemas, and fit each other and kvd."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path
from typing import Any

import ctest
import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator.v1 import PrometheusRule, ServiceMonitor

FOLDER = Path(__file__).parents[3] / "deploy/kubernetes"
CHART = FOLDER.parent / "helm/kvd"
PROMETHEUS = FOLDER.parent / "prometheus"
HELM = Path(os.environ["KVDTEST_MONITORING"], "helm")
ROUTER = Path(os.environ.get("KVDTEST_ROUTERS", ""), "bin/vllm-router")
KVD = f"{os.environ['KVDTEST_BIN_DIR']}/kvd"


def documents(name: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all((FOLDER / name).read_text()) if each]


def named(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["kind"], each["metadata"]["name"]): each for each in documents(name)}


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *words], capture_output=True, text=True, timeout=60, check=False)


def rendered(**values: Any) -> dict[str, dict[str, Any]]:
    """What the chart makes of values, by kind."""
    run = helm("template", "kvd", str(CHART), "--namespace", "kvd",
               *(word for name, value in values.items()
                 for word in ("--set-json", f"{name}={json.dumps(value)}")))  # fmt: skip
    assert run.returncode == 0, run.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(run.stdout) if each}


def monitored() -> dict[str, dict[str, Any]]:
    return rendered(serviceMonitor=True, prometheusRule=True)


GPU = {"backend": "cuda", "pool": {"hbm": "60GiB"}}
REMOTE = {"remote": {"servers": "cache-1:6379"}}
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "a GPU": {"config": GPU},
    "a disk, without a holder": {"config": {"disk": {"path": "/var/cache/kvd", "size": "64GiB"}}, "holder": False},
    "several nodes": {"config": REMOTE},
    "several nodes with GPUs": {"config": GPU | REMOTE},
    "quotas": {"domains": [{"name": "chat", "uids": [1000], "hbm_guarantee": "1GiB"}, {"name": "others"}],
               "config": {"pool": {"hbm": "1536MiB", "slab": "2MiB"}, "slo": {"default": {"ttft": "1s"}},
                          "engine": {"max_engines": 8}}},
    "some nodes": {"nodeSelector": {"gpu": "yes"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
}  # fmt: skip


class Manifests(unittest.TestCase):
    def setUp(self) -> None:
        self.kvd = rendered()
        self.pod = self.kvd["DaemonSet"]["spec"]["template"]["spec"]
        [self.engine] = documents("example-engine.yaml")

    def test_are_valid(self) -> None:
        version = kubernetes_validate.latest_version()
        for document in [self.engine, *documents("nodes.yaml")]:
            kubernetes_validate.validate(document, version, strict=True)
        for name, values in VALUES.items():
            for document in rendered(**values).values():
                with self.subTest(name, kind=document["kind"]):
                    kubernetes_validate.validate(document, version, strict=True)

    def test_helm_finds_nothing_in_the_chart(self) -> None:
        run = helm("lint", "--strict", str(CHART))
        self.assertEqual(run.returncode, 0, run.stdout)
        with tempfile.TemporaryDirectory(prefix="kvd-chart-") as folder:
            wrong = Path(shutil.copytree(CHART, f"{folder}/kvd"))
            with (wrong / "templates/config.yaml").open("a") as file:
                file.write("  broken: [\n")
            self.assertNotEqual(helm("lint", "--strict", str(wrong)).returncode, 0)

    def test_a_size_that_the_chart_cannot_count_is_refused(self) -> None:
        run = helm("template", "kvd", str(CHART), "--set", "config.pool.hbm=4GB")
        self.assertIn("set the sizes of config.pool in GiB or MiB, or `memory`: 4GB", run.stderr)
        self.assertEqual(helm("template", "kvd", str(CHART), "--set", "config.pool.hbm=4GB,memory=8Gi").returncode, 0)

    def test_the_one_for_gpus_differs_in_what_a_gpu_takes(self) -> None:
        gpus = rendered(config={"backend": "cuda"})
        self.assertIn('backend = "cuda"', gpus["ConfigMap"]["data"]["kvd.toml"])
        pod = gpus["DaemonSet"]["spec"]["template"]["spec"]
        self.assertEqual(pod.pop("runtimeClassName"), "nvidia")
        env = {each["name"]: each["value"] for each in pod["containers"][0].pop("env")}
        self.assertEqual(env["NVIDIA_VISIBLE_DEVICES"], "all")
        for each in (gpus, self.kvd):
            del each["DaemonSet"]["spec"]["template"]["metadata"]["annotations"]
            del each["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]["resources"]
        self.assertEqual(gpus["DaemonSet"], self.kvd["DaemonSet"])

    def test_the_disk_is_a_folder_of_the_node(self) -> None:
        pod = rendered(**VALUES["a disk, without a holder"])["DaemonSet"]["spec"]["template"]["spec"]
        kvd = pod["containers"][0]
        self.assertEqual(kvd["command"], ["/usr/bin/kvd"])
        [mount] = [each for each in kvd["volumeMounts"] if each["name"] == "disk"]
        [volume] = [each for each in pod["volumes"] if each["name"] == "disk"]
        self.assertEqual({mount["mountPath"], volume["hostPath"]["path"]}, {"/var/cache/kvd"})

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

        monitor = monitored()["ServiceMonitor"]
        self.assertEqual(known(monitor), monitor)
        misspelt = copy.deepcopy(monitor)
        misspelt["spec"]["endpoints"][0]["intervall"] = "10s"
        self.assertNotEqual(known(misspelt), misspelt)
        wrong = copy.deepcopy(monitor)
        wrong["spec"]["endpoints"][0]["interval"] = "10 seconds"
        with self.assertRaisesRegex(ValueError, "interval"):
            known(wrong)

    def test_the_rules_are_the_same_under_the_operator(self) -> None:
        rule = monitored()["PrometheusRule"]
        model = PrometheusRule.model_validate(rule)
        self.assertEqual(model.model_dump(mode="json", by_alias=True, exclude_unset=True), rule)
        self.assertEqual(rule["spec"], yaml.safe_load((PROMETHEUS / "kvd.rules.yml").read_text()))

    def test_the_alerts_ask_for_the_job_that_every_scrape_makes(self) -> None:
        found = monitored()
        monitor = found["ServiceMonitor"]
        scrapes = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
        service = self.kvd["Service"]["metadata"]
        label = monitor["spec"].get("jobLabel")
        jobs = {scrape["job_name"] for scrape in scrapes}
        jobs.add(service["labels"][label] if label else service["name"])
        rules = [rule for group in found["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]]
        asked = {job for rule in rules for job in re.findall(r'\bjob="([^"]*)"', rule["expr"])}
        self.assertEqual((jobs, asked), ({"kvd"}, {"kvd"}))

    def test_the_runbooks_are_pages_that_the_package_installs(self) -> None:
        docs = FOLDER.parents[1] / "docs"
        titles = re.findall(r"^## (\w+)$", (docs / "alerts.md").read_text(), re.M)
        rules = [rule for group in monitored()["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]]
        for alert in [rule for rule in rules if "alert" in rule]:
            url = alert["annotations"]["runbook_url"]
            self.assertIn("file:///usr/share/doc/kvd/docs{{ end }}/alerts.md#", url)
            self.assertIn(url.partition("#")[2], [title.lower() for title in titles])

    def test_the_pod_is_probed_and_leaves_in_order(self) -> None:
        kvd = self.pod["containers"][0]
        self.assertEqual(kvd["command"][0], "/usr/bin/kvd-holder")
        self.assertTrue(self.pod["hostPID"])
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            self.assertIn(probe, kvd)
        asked = kvd["readinessProbe"]["httpGet"]
        nginx = self.kvd["ConfigMap"]["data"]["nginx.conf"]
        self.assertIn(f"listen {asked['port']};", nginx)
        self.assertIn(f"location = {asked['path']} ", nginx)
        drain = kvd["lifecycle"]["preStop"]["exec"]["command"]
        deadline = int(drain[drain.index("--deadline") + 1])
        self.assertGreaterEqual(self.pod["terminationGracePeriodSeconds"], deadline + 10 + 15)

    def test_the_engine_finds_the_socket(self) -> None:
        [sockets] = [v for v in self.pod["volumes"] if v["name"] == "sockets"]
        [volume] = self.engine["spec"]["volumes"]
        self.assertEqual(sockets["hostPath"]["path"], volume["hostPath"]["path"])
        container = self.engine["spec"]["containers"][0]
        [mount] = container["volumeMounts"]
        self.assertEqual(container["env"], [
            {"name": "KVD_ENDPOINT", "value": f"{mount['mountPath']}/attach.sock"}])  # fmt: skip

    def test_nodes_share_blocks_by_a_server_that_is_theirs(self) -> None:
        kvd = rendered(config=REMOTE)
        pod = kvd["DaemonSet"]["spec"]["template"]["spec"]
        remote = tomllib.loads(kvd["ConfigMap"]["data"]["kvd.toml"])["remote"]
        found = named("nodes.yaml")
        name, port = remote["servers"].split(":")
        [served] = found["Service", name]["spec"]["ports"]
        [valkey] = found["Deployment", name]["spec"]["template"]["spec"]["containers"]
        self.assertEqual((served["port"], served["targetPort"]), (int(port), valkey["ports"][0]["name"]))
        self.assertEqual(valkey["ports"][0]["containerPort"], int(port))
        [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "remote"]
        [volume] = [each["secret"] for each in pod["volumes"] if each["name"] == "remote"]
        self.assertEqual(volume["defaultMode"] & 0o077, 0)  # kvd refuses what others may read
        for key in ("secret_file", "password_file"):
            self.assertEqual(str(Path(remote[key]).parent), mount["mountPath"])
        asked = valkey["env"][0]["valueFrom"]["secretKeyRef"]
        self.assertEqual((asked["name"], asked["key"]), (volume["secretName"], Path(remote["password_file"]).name))
        policy = found["NetworkPolicy", "cache"]["spec"]
        self.assertEqual(policy["podSelector"]["matchLabels"], found["Deployment", name]["metadata"]["labels"])
        [allowed] = policy["ingress"][0]["from"]
        self.assertEqual(allowed["podSelector"]["matchLabels"], kvd["DaemonSet"]["metadata"]["labels"])
        mounts = {each["name"]: str(each["volumeMounts"]) for each in pod["containers"]}
        self.assertEqual([name for name in mounts if "remote" in mounts[name]], ["kvd"])

    def test_the_router_asks_both_engines_of_its_node(self) -> None:
        pod = named("nodes.yaml")["DaemonSet", "vllm"]["spec"]["template"]["spec"]
        of = {each["name"]: each for each in pod["containers"]}

        def flag(name: str, flag: str) -> str:
            arguments = of[name]["args"]
            return str(arguments[arguments.index(flag) + 1])

        for name in ("prefill", "decode"):
            url = f"http://{flag(name, '--host')}:{flag(name, '--port')}"
            self.assertEqual(flag("router", f"--{name}"), url)
            environment = {each["name"]: each["value"] for each in of[name]["env"]}
            sockets = [each for each in of[name]["volumeMounts"] if each["name"] == "kvd"][0]["mountPath"]
            self.assertEqual(environment["KVD_ENDPOINT"], f"{sockets}/attach.sock")
        self.assertEqual(of["prefill"]["securityContext"], of["decode"]["securityContext"])
        self.assertEqual(str(of["router"]["ports"][0]["containerPort"]), flag("router", "--port"))

    @unittest.skipUnless(ROUTER.exists(), "vllm-router is not fetched: sh deploy/ci/routers.sh --fetch")
    def test_the_router_knows_its_flags(self) -> None:
        pod = named("nodes.yaml")["DaemonSet", "vllm"]["spec"]["template"]["spec"]
        [router] = [each for each in pod["containers"] if each["name"] == "router"]
        run = subprocess.run([ROUTER, *router["args"], "--none-such"], capture_output=True, text=True, timeout=60)
        self.assertEqual(run.stderr.splitlines()[-1], "vllm-router: error: unrecognized arguments: --none-such")

    def test_the_monitor_finds_the_metrics(self) -> None:
        monitor = monitored()["ServiceMonitor"]
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
        for name, values in VALUES.items():
            made = rendered(**values)
            text = made["ConfigMap"]["data"]["kvd.toml"]
            self.assertEqual(len(tomllib.loads(text).get("domain", [])), len(values.get("domains", [])))
            with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
                file.write(text)
                file.flush()
                run = subprocess.run([KVD, "--config", file.name, "--print-unit"], text=True,
                                     capture_output=True, timeout=60, check=False)  # fmt: skip
            needed = re.search(r"^MemoryMax=(\d+)", run.stdout, re.M)
            assert needed is not None, f"{name}: {run.stderr}"
            container = made["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]
            limit = int(container["resources"]["limits"]["memory"].removesuffix("Mi")) << 20
            self.assertGreaterEqual(limit, int(needed[1]), name)
            self.assertLess(limit, int(needed[1]) * 1.5, name)


if __name__ == "__main__":
    ctest.main()
