"""Each alert fires in the fault made for it, and none fires without it: promtool on made-up series."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import ctest

RULES = Path(__file__).parents[3] / "deploy/prometheus/kvd.rules.yml"
PROMTOOL = Path(os.environ["KVDTEST_MONITORING"], "prometheus/promtool")

# 20 minutes at a sample every 15 s. Load, and nothing wrong.
SOUND = {
    "up{}": "1x80",
    "kvd_uptime_seconds{}": "0+15x80",
    "kvd_engines_died_total{}": "0x80",
    'kvd_engine_unresponsive{engine="e"}': "0x80",
    'kvd_slo_intervals_total{goal="tbt", outcome="met"}': "0+95x80",
    'kvd_slo_intervals_total{goal="tbt", outcome="missed"}': "0+5x80",
    'kvd_engine_oldest_wait_goals{engine="e", domain="d", class="default"}': "9x80",
    'kvd_engine_oldest_wait_goals{engine="f", domain="d", class="default"}': "0.5x80",
    'kvd_engine_tokens_total{engine="e", domain="d"}': "0+300x80",
    'kvd_engine_tokens_total{engine="f", domain="d"}': "0+700x80",
    'kvd_requests{state="waiting"}': "4x80",
    "kvd_tokens_total{}": "0+1000x80",
    "kvd_requests_out_of_memory_total{}": "0x80",
    "kvd_standstills_total{}": "0x80",
    "kvd_copy_failures_total{}": "0x80",
    'kvd_remote_server_up{server="cache-1:6379"}': "1x80",
    "kvd_orphaned_bytes{}": "0x80",
    'kvd_pool_quarantined_bytes{tier="hbm", device="0"}': "0x80",
    'kvd_pool_free_bytes{tier="hbm", device="0"}': "256x80",
    'kvd_pool_capacity_bytes{tier="hbm", device="0"}': "1024x80",
    "kvd_commands_refused_total{}": "0x80",
}
# The series that differs, and how.
FAULTS = {
    "KvdDown": ("up{}", "0x80"),
    "KvdRestarted": ("kvd_uptime_seconds{}", "5000+15x40 0+15x40"),
    "KvdEngineDied": ("kvd_engines_died_total{}", "0x50 1x30"),
    "KvdEngineUnresponsive": ('kvd_engine_unresponsive{engine="e"}', "0x70 1x10"),
    "KvdGoalsMissed": ('kvd_slo_intervals_total{goal="tbt", outcome="missed"}', "0+40x80"),
    "KvdEngineStarved": ('kvd_engine_tokens_total{engine="e", domain="d"}', "7000x80"),
    "KvdRequestsWait": ("kvd_tokens_total{}", "7000x80"),
    "KvdRequestsOutOfMemory": ("kvd_requests_out_of_memory_total{}", "0x50 3x30"),
    "KvdStandstill": ("kvd_standstills_total{}", "0x50 1x30"),
    "KvdCopiesFail": ("kvd_copy_failures_total{}", "0x50 1x30"),
    "KvdRemoteServerOff": ('kvd_remote_server_up{server="cache-1:6379"}', "0x80"),
    "KvdMemoryOrphaned": ("kvd_orphaned_bytes{}", "2097152x80"),
    "KvdMemoryQuarantined": ('kvd_pool_quarantined_bytes{tier="hbm", device="0"}', "2097152x80"),
    "KvdCommandsRefused": ("kvd_commands_refused_total{}", "0+1x80"),
}


def series(changes: dict[str, str]) -> list[dict[str, str]]:
    made = []
    for name, values in (SOUND | changes).items():
        labels = name.replace("{", '{job="kvd", instance="a", ').replace(", }", "}")
        made.append({"series": labels, "values": values})
    return made


def case(name: str, changes: dict[str, str], firing: list[str]) -> dict[str, object]:
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in firing]
    return {
        "name": name,
        "interval": "15s",
        "input_series": series(changes),
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "20m",
                "exp_samples": samples,
            }
        ],
    }


class Alerts(unittest.TestCase):
    def test_each_fires_in_its_fault_and_nowhere_else(self) -> None:
        cases = [case("nothing is wrong", {}, [])]
        cases += [case(alert, dict([fault]), [alert]) for alert, fault in FAULTS.items()]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "test.yml")  # JSON is YAML
            file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "15s",
                                        "tests": cases}))  # fmt: skip
            run = subprocess.run([PROMTOOL, "test", "rules", file], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_all_have_a_fault(self) -> None:
        self.assertEqual(re.findall(r"- alert: (\w+)", RULES.read_text()), list(FAULTS))


if __name__ == "__main__":
    ctest.main()
