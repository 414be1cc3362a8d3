#pragma once

#include <string>

#include "ipc/vocabulary/result.hpp"
#include "tests/gpu/experiments/experiments.hpp"
#include "tests/gpu/lab.hpp"

namespace kvd::gpu {

/// What nvidia-smi answers to a query of the GPU, such as "persistence_mode"; "unknown" without it.
[[nodiscard]] std::string ask_smi(const std::string& query);

/// Facts about the machine that a figure may depend on: kernel, IOMMU, huge pages, who else uses
/// the GPU, the link while it is busy, entry points that the driver lacks.
Status machine_facts(const Lab& lab, const Gpu& gpu);

}  // namespace kvd::gpu
