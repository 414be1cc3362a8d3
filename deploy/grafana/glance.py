"""Makes deploy/grafana/glance.json, the dashboard that answers: who suffers, because of whom, and what is
there to turn?

    python3 deploy/grafana/glance.py > deploy/grafana/glance.json

A test compares the file with what this makes; another one asks a Prometheus each of these queries.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field

from dashboard import DATASOURCE, HEIGHT, WIDTH, Json, document, variable

# Words in the queries below, and what Grafana is sent for them.
WORDS = {
    "ENGINE": 'job=~"$job",instance=~"$instance",engine=~"$engine",domain=~"$domain"',
    "DEVICE": 'job=~"$job",instance=~"$instance",device=~"$device"',
    "NODE": 'job=~"$job",instance=~"$instance"',
    "RATE": "$__rate_interval",
}

TURN = """
| you see | so | turn |
|---|---|---|
| one engine's oldest wait is over 1, another one makes tokens and holds the HBM | others go first, or hold \
the memory | a guarantee for the one's domain or a lower maximum for the other's: `kvdctl quota set`. Goals \
that say what is urgent: `kvdctl slo set` |
| all miss goals, requests fill the HBM, many rotations | HBM is too small for the load | send less, or a larger \
`pool.hbm` |
| all miss goals, few rotations | the engines are at their limit | fewer requests at a time: \
`engine.max_requests` |
| regions fill the HBM | engines that place their blocks themselves keep them | their domain's maximum: \
`kvdctl quota set` |
| rotations fail for `dram` | what should leave HBM has no room | a larger `pool.dram` |
| the link is busy all the time | copies slow steps down | less a step: `kvdctl policy set rotation.b_xfer=64MiB`. \
Where computing is faster: `load.policy=never` |
| most prompt tokens are computed, nothing is cached | prompts do not repeat, or what is cached is evicted | \
`kvdctl advise` says whether caching pays; `disk.path` |

`kvdctl requests` says of each request why it waits.
"""


@dataclass(frozen=True)
class Panel:
    title: str
    description: str
    queries: dict[str, str] = field(default_factory=dict)  # by legend
    unit: str = "short"
    type: str = "timeseries"
    width: int = WIDTH
    stacked: bool = False
    limit: float | None = None  # a line that is not to be crossed
    options: Json = field(default_factory=dict)

    def made(self, number: int, x: int, y: int) -> Json:
        formats: Json = {"heatmap": {"format": "heatmap"}, "table": {"format": "table", "instant": True}}
        targets = [{"refId": chr(ord("A") + at), "expr": spelled_out(query), "legendFormat": legend,
                    "datasource": DATASOURCE, **formats.get(self.type, {})}
                   for at, (legend, query) in enumerate(self.queries.items())]  # fmt: skip
        defaults: Json = {"unit": self.unit}
        if self.type == "timeseries":
            stacking = {"stacking": {"mode": "normal"}, "fillOpacity": 60} if self.stacked else {}
            limit = {"thresholdsStyle": {"mode": "line"}} if self.limit is not None else {}
            defaults |= {"min": 0, "custom": stacking | limit}
            if self.limit is not None:
                steps = [{"color": "green", "value": None}, {"color": "red", "value": self.limit}]
                defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        made = {
            "id": number,
            "type": self.type,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": HEIGHT},
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": self.options,
            "targets": targets,
        }
        if self.type == "table":
            hidden = ["Time", "__name__", "alertstate", "job"] + (["Value"] if self.unit == "short" else [])
            made["transformations"] = [
                {"id": "organize", "options": {"excludeByName": dict.fromkeys(hidden, True)}}
            ]
        return made


def spelled_out(query: str) -> str:
    for word, text in WORDS.items():
        query = query.replace(word, text)
    return query


def goals_met(by: str) -> str:
    return (f'sum by ({by}) (rate(kvd_engine_slo_intervals_total{{outcome="met",ENGINE}}[RATE]))'
            f" / (sum by ({by}) (rate(kvd_engine_slo_intervals_total{{ENGINE}}[RATE])) > 0)")  # fmt: skip


def times(title: str, metric: str, description: str) -> Panel:
    return Panel(title, description,
                 {"{{le}}": f"sum by (le) (increase({metric}_bucket{{ENGINE}}[RATE]))"}, type="heatmap", width=12,
                 options={"calculate": False, "yAxis": {"unit": "s"}, "cellGap": 1,
                          "color": {"mode": "scheme", "scheme": "Oranges", "exponent": 0.5, "steps": 64},
                          "tooltip": {"show": True}})  # fmt: skip


def by_use(title: str, tier: str) -> Panel:
    parts = {"requests": "request", "regions": "pool_region", "kept back": "pool_quarantined",
             "cached": "cache", "free": "pool_free"}  # fmt: skip
    return Panel(title, "Requests: what they hold, shared blocks once. Cached: blocks that no request names any "
                 "more; it makes way, so that cached and free are what is available. Kept back: memory of dead "
                 "engines that may still be written. All devices together.",
                 {name: f'sum(kvd_{part}_bytes{{tier="{tier}",NODE}})' for name, part in parts.items()},
                 unit="bytes", stacked=True)  # fmt: skip


ROWS = {
    "Who suffers?": [
        Panel("Alerts", "What fires now; docs/alerts.md says of each what it means and what to do.",
              {"": 'ALERTS{alertstate="firing",NODE}'}, type="table"),
        Panel("Goals met, by class", "Of first tokens (ttft) and of times between tokens (tbt).",
              {"{{class}} {{goal}}": goals_met("class, goal")}, unit="percentunit"),
        Panel("Goals met, by engine", "Whose users suffer, where a class has several engines.",
              {"{{engine}} {{goal}} {{instance}}": goals_met("instance, engine, goal")}, unit="percentunit"),
        Panel("Oldest wait, in goals, by engine",
              "The most goals that a request has waited that waits now; above 1 its goal has passed.",
              {"{{engine}} {{instance}}": "max by (instance, engine) (kvd_engine_oldest_wait_goals{ENGINE})"},
              limit=1),
        Panel("Tokens a second, by engine", "An engine that makes none beside one that makes many is starved.",
              {"{{engine}} {{instance}}": "sum by (instance, engine) (rate(kvd_engine_tokens_total{ENGINE}[RATE]))"}),
        Panel("Requests, by state", "Waiting: not begun. Rotary: parked in DRAM until they may run again.",
              {"{{state}}": "sum by (state) (kvd_requests{NODE})"}, stacked=True),
        times("Time to the first token", "kvd_engine_ttft_seconds", "Of requests whose first token has come."),
        times("Time between tokens", "kvd_engine_tbt_seconds", "Of requests whose next token has come."),
    ],
    "Because of whom?": [
        by_use("HBM, by what it is used for", "hbm"),
        Panel("HBM, by engine", "What requests of an engine hold, and its regions. Blocks that several "
              "requests share count for each of them.",
              {"{{engine}} requests {{instance}}": 'sum by (instance, engine) (kvd_engine_bytes{tier="hbm",ENGINE})',
               "{{engine}} regions {{instance}}": "sum by (instance, engine) (kvd_engine_region_bytes{ENGINE})"},
              unit="bytes", stacked=True),
        Panel("HBM that is free, by device", "Of each device's capacity; what is cached is not free.",
              {"{{device}} {{instance}}": "sum by (instance, device) "
               '(kvd_pool_free_bytes{tier="hbm",DEVICE} / (kvd_pool_capacity_bytes{tier="hbm",DEVICE} > 0))'},
              unit="percentunit"),
        by_use("DRAM, by what it is used for", "dram"),
        Panel("DRAM, by engine", "What requests of an engine hold: parked ones, and copies made ahead.",
              {"{{engine}} {{instance}}": 'sum by (instance, engine) (kvd_engine_bytes{tier="dram",ENGINE})'},
              unit="bytes", stacked=True),
        Panel("Rotations a second, by engine", "Requests that left HBM for others (out), and came back (in).",
              {"{{engine}} {{direction}} {{instance}}":
               "sum by (instance, engine, direction) (rate(kvd_engine_rotations_total{ENGINE}[RATE]))"}),
        Panel("Prompt tokens a second, by where their KV came from", "Of engines that tell what the tokens are.",
              {"{{source}}": "sum by (source) (rate(kvd_prefix_tokens_total{NODE}[RATE]))"}, stacked=True),
        Panel("Loaded from disk and other nodes", "Cached blocks that were brought to DRAM for a request.",
              {"disk": 'sum(rate(kvd_disk_bytes_total{direction="load",NODE}[RATE]))',
               "remote": 'sum(rate(kvd_remote_bytes_total{direction="load",NODE}[RATE]))'}, unit="Bps"),
        Panel("Time that the links work", "Of each direction's copy queues, h2d into HBM and d2h out of it; "
              "several devices add up.",
              {"{{direction}} {{instance}}":
               "sum by (instance, direction) (rate(kvd_copy_busy_seconds_total{NODE}[RATE]))",
               "streamed layers {{instance}}":
               "sum by (instance) (rate(kvd_layer_fetch_busy_seconds_total{NODE}[RATE]))"}, unit="percentunit"),
    ],
    "What is there to turn?": [
        Panel("What to turn", "", type="text", width=24, options={"mode": "markdown", "content": TURN.strip()}),
        Panel("Rotations that could not happen", "dram: no room to leave to. growth: no block to grow into. "
              "promise: another engine has yet to give.",
              {"{{reason}}": "sum by (reason) (rate(kvd_rotation_blocked_total{NODE}[RATE]))"}, unit="ops"),
        Panel("The link: copied, and measured rate", "Rate that a device's link has reached, and what was copied.",
              {"copied {{direction}}": "sum by (direction) (rate(kvd_copy_bytes_total{NODE}[RATE]))",
               "rate {{direction}} {{device}} {{instance}}": "kvd_link_rate_bytes_per_second{DEVICE}"}, unit="Bps"),
        Panel("Rotation budget of a step", "rotation.b_xfer as of the last decision, by device.",
              {"{{device}} {{instance}}": "kvd_rotation_budget_bytes{DEVICE}"}, unit="bytes"),
        Panel("Goals in force", "kvdctl slo set changes them.", {"": "kvd_slo_goal_seconds{NODE}"},
              unit="s", type="table"),
        Panel("Policies in force", "kvdctl policy set changes them.", {"": "kvd_policy_info{NODE}"}, type="table"),
        Panel("What went wrong", "Requests ended for want of memory, standstills, dead engines, failed copies.",
              {"out of memory": "sum(increase(kvd_requests_out_of_memory_total{NODE}[RATE]))",
               "standstills": "sum(increase(kvd_standstills_total{NODE}[RATE]))",
               "engines that died": "sum(increase(kvd_engines_died_total{NODE}[RATE]))",
               "copies that failed": "sum(increase(kvd_copy_failures_total{NODE}[RATE]))"}),
    ],
}  # fmt: skip

VARIABLES = [
    variable("engine", 'label_values(kvd_engine_up{job=~"$job",instance=~"$instance"}, engine)'),
    variable("domain", 'label_values(kvd_engine_up{job=~"$job",instance=~"$instance"}, domain)'),
    variable("device", 'label_values(kvd_link_rate_bytes_per_second{job=~"$job",instance=~"$instance"}, device)'),
]


def annotation(name: str, colour: str, title: str, query: str) -> Json:
    return {"name": name, "datasource": DATASOURCE, "enable": True, "iconColor": colour, "expr": spelled_out(query),
            "step": "30s", "titleFormat": title, "textFormat": "{{instance}}"}  # fmt: skip


ANNOTATIONS = [
    annotation("Restarts", "red", "kvd started", "kvd_uptime_seconds{NODE} < 60"),
    annotation("Changed settings", "blue", "changed: {{decision}} {{parameter}} {{class}} {{goal}}",
               'changes({__name__=~"kvd_policy_parameter|kvd_slo_goal_seconds|kvd_tuning_b_xfer_bytes",NODE}[1m])'
               " > 0"),
    annotation("Changed policies", "purple", "{{decision}} is {{policy}}",
               "(kvd_policy_info{NODE} unless kvd_policy_info{NODE} offset 1m)"
               " and on (job, instance) kvd_uptime_seconds{NODE} > 60"),
]  # fmt: skip


def panels() -> list[Json]:
    made: list[Json] = []
    y = 0
    for title, inside in ROWS.items():
        made.append({"id": len(made) + 1, "type": "row", "title": title, "collapsed": False,
                     "panels": [], "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})  # fmt: skip
        x, y = 0, y + 1
        for each in inside:
            if x + each.width > 24:
                x, y = 0, y + HEIGHT
            made.append(each.made(len(made) + 1, x, y))
            x += each.width
        y += HEIGHT
    return made


def dashboard() -> Json:
    question = "Who suffers, because of whom, and what is there to turn?"
    made = document("kvd-glance", "kvd", question, VARIABLES, panels())
    return made | {"annotations": {"list": ANNOTATIONS}}


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=1)
    print()
