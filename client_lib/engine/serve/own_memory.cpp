#include "client_lib/engine/serve/own_memory.hpp"

#include <algorithm>
#include <string>

namespace kvd::engine {

OwnMemory::OwnMemory(const kernels::KvLayout& layout, std::uint32_t layers, std::uint32_t chunk)
    : layout_(layout),
      groups_((layers + layout.layers_per_block - 1) / layout.layers_per_block),
      chunk_(chunk) {}

Status OwnMemory::submit(const kvd_client::Request& request) {
  Held held;
  held.prompt = request.prompt_tokens;
  held.groups.resize(groups_);
  held_.emplace(request.id, std::move(held));
  return {};
}

Status OwnMemory::abort(std::uint64_t request) {
  held_.erase(request);
  return {};
}

Result<Grant> OwnMemory::step(std::span<const kvd_client::StepReport> reports, bool) {
  for (const kvd_client::StepReport& report : reports) {
    if (report.finished) held_.erase(report.request);
  }
  Grant out;
  for (auto& [request, held] : held_) out.runs.push_back(grant(request, held));
  if (!out.runs.empty()) ++iteration_;
  out.iteration = iteration_;
  return out;
}

Run OwnMemory::grant(std::uint64_t request, Held& held) const {
  Run run;
  run.entry.request = request;
  run.entry.tokens_present = held.planned;
  run.entry.prefill = held.planned < held.prompt;
  std::uint64_t tokens = run.entry.prefill ? held.prompt - held.planned : 1;
  if (chunk_ != 0) tokens = std::min<std::uint64_t>(tokens, chunk_);
  run.entry.tokens = static_cast<std::uint32_t>(tokens);
  held.planned += tokens;
  const std::uint64_t per_block = layout_.block_tokens;
  run.blocks = static_cast<std::uint32_t>((held.planned + per_block - 1) / per_block);
  for (auto& blocks : held.groups) {
    while (blocks.size() < run.blocks) {
      blocks.push_back(std::make_unique<std::byte[]>(layout_.slot_bytes()));
    }
    for (std::uint32_t block = 0; block < run.blocks; ++block) {
      run.slots.push_back(blocks[block].get());
    }
  }
  return run;
}

}  // namespace kvd::engine
