#pragma once

#include <ggml-backend-impl.h>

#include "client_lib/llama/plugin/engine_symbols.hpp"

namespace kvd::llama {

/// KVD0: a device whose memory is kvd's and whose computing is the CPU's.
///
/// llama.cpp puts the KV cache of a layer into the buffer type of the layer's device. This device
/// says it is a GPU, so layers are assigned to it. It takes no weights, so these stay in the CPU's
/// buffers as ever; and it hands graphs to the engine's CPU backend, so that what works on a KV
/// cache runs on the layer's own device: llama.cpp keeps flash attention on only then. Owner: made
/// once, immutable afterwards; `symbols` must be complete
ggml_backend_dev_t make_device(ggml_backend_reg_t registration, const EngineSymbols& symbols);

}  // namespace kvd::llama
