#pragma once

#include <ggml-backend-impl.h>

#include "client_lib/llama/plugin/engine_symbols.hpp"

namespace kvd::llama {

/// The buffer type "KVD0": plain host memory to ggml. A KV cache gets memory of kvd; all else the
/// engine wants beside it (what it computes with, weights of a vision model) gets the CPU's.
/// ggml does not say what a buffer is for, but asks for the size of each tensor right before it
/// asks for the buffer they go to, and llama.cpp names the tensors of a KV cache.
/// Owner:   made once, immutable afterwards; `symbols` must be complete
ggml_backend_buffer_type_t make_buffer_type(ggml_backend_dev_t device,
                                            const EngineSymbols& symbols);

/// Whether the buffer is of KVD0's type: true too for the empty ones with which an engine asks what
/// it could do with such a buffer.
bool is_kvd_buffer(const ggml_backend_buffer* buffer);

/// True where a KV cache in kvd's memory holds this layer, in any context of the process.
bool holds_layer(unsigned layer);
/// True where any KV cache of the process lies in kvd's memory.
bool holds_any();

}  // namespace kvd::llama
