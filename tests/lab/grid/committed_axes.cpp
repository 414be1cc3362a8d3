#include "tests/lab/grid/axes.hpp"

/// Change these only before a policy changes, never to suit one.
namespace kvd::sim::grid {

std::string_view committed_axes() {
  return R"json({
  "seed": 15,
  "cells": 216,
  "machines": [
    ["gh200-qwen2.5-32b"],
    ["gh200-mixtral-8x7b"],
    ["h100-pcie-llama3-8b"],
    ["l20-llama2-7b"],
    ["gh200-qwen2.5-32b", "gh200-mixtral-8x7b"],
    ["h100-pcie-llama3-8b", "h100-pcie-llama3-8b", "h100-pcie-llama3-8b"]
  ],
  "lengths": [
    {"source": "gen:sharegpt", "duration_s": 45, "ttft_s": 5, "tbt_s": 0.1},
    {"source": "gen:azure", "duration_s": 45, "ttft_s": 5, "tbt_s": 0.1},
    {"source": "gen:fixed-2000-200", "duration_s": 45, "ttft_s": 5, "tbt_s": 0.1},
    {"source": "gen:mooncake", "duration_s": 180, "ttft_s": 30, "tbt_s": 0.2},
    {"source": "gen:fixed-32000-400", "duration_s": 180, "ttft_s": 30, "tbt_s": 0.2},
    {"source": "gen:fixed-131072-300", "duration_s": 1200, "ttft_s": 120, "tbt_s": 0.5}
  ],
  "classes": [
    {"name": "one class"},
    {"name": "a tenth strict", "strict_share": 0.1, "ttft": 0.4, "tbt": 0.6}
  ],
  "cv": [1, 2, 4, 6],
  "max_tokens": ["exact", "mix", "8192"],
  "load": [0.5, 0.8, 1, 1.1, 1.2, 1.35, 1.5, 1.75, 2],
  "hbm": [0.25, 1],
  "dram": [0.25, 1, 4]
}
)json";
}

std::string_view committed_goals() {
  return R"json({
  "seed": 41,
  "cells": 135,
  "ids": "g",
  "by_class": true,
  "machines": [
    ["gh200-qwen2.5-32b"],
    ["h100-pcie-llama3-8b"],
    ["l20-llama2-7b"],
    ["gh200-qwen2.5-32b", "gh200-qwen2.5-32b"],
    ["h100-pcie-llama3-8b", "h100-pcie-llama3-8b"],
    ["l20-llama2-7b", "l20-llama2-7b"],
    {"profiles": ["gh200-qwen2.5-32b", "gh200-qwen2.5-32b"], "apart": true},
    {"profiles": ["h100-pcie-llama3-8b", "h100-pcie-llama3-8b"], "apart": true},
    {"profiles": ["l20-llama2-7b", "l20-llama2-7b"], "apart": true}
  ],
  "lengths": [
    {"source": "gen:sharegpt", "duration_s": 45, "ttft_s": 5, "tbt_s": 0.1},
    {"source": "gen:azure", "duration_s": 45, "ttft_s": 5, "tbt_s": 0.1},
    {"source": "gen:mooncake", "duration_s": 400, "ttft_s": 30, "tbt_s": 0.2}
  ],
  "classes": [
    {"name": ".1 tight, others 6:1", "parts": [{"share": 0.9, "ttft": 6}]},
    {"name": ".3 tight, others 6:1", "parts": [{"share": 0.7, "ttft": 6}]},
    {"name": ".5 tight, others 6:1", "parts": [{"share": 0.5, "ttft": 6}]},
    {"name": ".1 tight, others 6:10", "parts": [{"share": 0.9, "ttft": 6, "tbt": 10}]},
    {"name": ".3 tight, others 6:10", "parts": [{"share": 0.7, "ttft": 6, "tbt": 10}]},
    {"name": ".5 tight, others 6:10", "parts": [{"share": 0.5, "ttft": 6, "tbt": 10}]},
    {"name": ".1 tight, others 120:1", "parts": [{"share": 0.9, "ttft": 120}]},
    {"name": ".3 tight, others 120:1", "parts": [{"share": 0.7, "ttft": 120}]},
    {"name": ".5 tight, others 120:1", "parts": [{"share": 0.5, "ttft": 120}]},
    {"name": ".1 tight, others 120:10", "parts": [{"share": 0.9, "ttft": 120, "tbt": 10}]},
    {"name": ".3 tight, others 120:10", "parts": [{"share": 0.7, "ttft": 120, "tbt": 10}]},
    {"name": ".5 tight, others 120:10", "parts": [{"share": 0.5, "ttft": 120, "tbt": 10}]},
    {"name": ".1 tight, .4 6:1, .5 120:10",
     "parts": [{"share": 0.4, "ttft": 6}, {"share": 0.5, "ttft": 120, "tbt": 10}]},
    {"name": ".3 tight, .3 6:1, .4 120:10",
     "parts": [{"share": 0.3, "ttft": 6}, {"share": 0.4, "ttft": 120, "tbt": 10}]},
    {"name": ".5 tight, .25 6:1, .25 120:10",
     "parts": [{"share": 0.25, "ttft": 6}, {"share": 0.25, "ttft": 120, "tbt": 10}]}
  ],
  "cv": [1, 2, 4],
  "max_tokens": ["exact", "mix", "8192"],
  "load": [0.8, 1, 1.2, 1.5, 2],
  "hbm": [0.25, 1],
  "dram": [0.25, 1, 4]
}
)json";
}

}  // namespace kvd::sim::grid
