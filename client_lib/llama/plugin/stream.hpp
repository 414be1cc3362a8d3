#pragma once

#include <ggml-backend-impl.h>

#include "client_lib/llama/plugin/engine_symbols.hpp"

namespace kvd::llama {

/// KVD0 as one context of the engine uses it, which ggml calls a backend. It computes nothing
/// itself but hands each graph to a backend of the engine's CPU device that it holds, with threads
/// of its own, as an engine gives its threads to its own CPU backend only.
/// Owner:   one thread at a time, as every ggml backend
/// null:    the engine has no CPU backend
ggml_backend_t make_stream(ggml_backend_dev_t device, const EngineSymbols& symbols);

/// The functions that an engine asks a backend for by name; null: not offered.
void* find_stream_function(const char* name);

}  // namespace kvd::llama
