#pragma once

#include "client_lib/llama/plugin/engine_symbols.hpp"

/// KVD_LLAMA_REQUIRE=1, or anything else but 0, false, no and off: the engine must not run with its
/// KV cache in memory of its own.
namespace kvd::llama {

bool memory_is_required();

/// Says why kvd's memory cannot be had, and ends the process with an error where it is required.
void refuse_engine(const char* why);

/// Where it is required: from now on the first graph on the CPU that reads or writes a KV cache
/// outside kvd's memory ends the process. An engine can compute without asking KVD0 for anything
/// (--device none, --no-kv-offload, fewer layers than the model has), so the CPU device is watched.
void watch_engine(const EngineSymbols& symbols);

}  // namespace kvd::llama
