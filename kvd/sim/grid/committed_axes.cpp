#include "kvd/sim/grid/axes.hpp"

/// Changed only before a policy is, never to suit one.
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

}  // namespace kvd::sim::grid
