#include <algorithm>
#include <string>
#include <utility>

#include "client_lib/src/abi/c_handle.hpp"

namespace kc = kvd_client;
using namespace kvd::client::c;  // NOLINT(google-build-using-namespace): this file is C outside

namespace {

thread_local std::string last_error;

static_assert(KVD_MEMORY_HOST == kc::kHostMemory && KVD_MEMORY_CUDA == kc::kCudaMemory &&
              KVD_MEMORY_UNMAPPED == kc::kUnmappedMemory);

kc::Options options_of(const kvd_open_options& in) {
  kc::Options options;
  if (in.endpoint != nullptr) options.endpoint = in.endpoint;
  if (in.engine_name != nullptr) options.engine_name = in.engine_name;
  options.shape = {in.layers, in.layers_per_block, in.block_tokens, in.bytes_per_token_per_layer};
  if (in.timeout_ns != 0) options.attach_timeout = duration(in.timeout_ns);
  if (in.memory != 0) options.memory = in.memory;
  options.transport = static_cast<kc::Transport>(in.transport);
  options.streams_layers = (in.abilities & KVD_STREAMS_LAYERS) != 0;
  options.group = {in.group, in.ranks, in.rank};
  options.device = in.device;
  if (in.model != nullptr) options.model = in.model;
  return options;
}

}  // namespace

kvd_status kvd::client::c::fail(const kc::Error& error) {
  last_error = error.message;
  return static_cast<kvd_status>(error.code);
}

kvd_status kvd_open(const kvd_open_options* options, kvd_handle** handle) {
  kvd_open_options in{};
  if (handle == nullptr || !read_struct(options, in)) return invalid(kNoStruct);
  auto opened = kc::Client::open(options_of(in));
  if (!opened.ok()) return fail(opened.error());
  *handle = new kvd_handle{std::move(*opened), {}, {}, {}};
  return KVD_OK;
}

void kvd_close(kvd_handle* handle) { delete handle; }

kvd_status kvd_get_session_info(kvd_handle* handle, kvd_session_info* info) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (!is_writable(info)) return invalid(kNoStruct);
  const auto session = handle->client.session();
  if (!session.ok()) return fail(session.error());
  kvd_session_info out{};
  out.engine = session->engine;
  out.layers = session->shape.layers;
  out.layers_per_block = session->shape.layers_per_block;
  out.block_tokens = session->shape.block_tokens;
  out.layer_groups = session->layer_groups;
  out.bytes_per_token_per_layer = session->shape.bytes_per_token_per_layer;
  out.block_bytes = session->block_bytes;
  out.slab_bytes = session->slab_bytes;
  out.generation = session->generation;
  out.memory = static_cast<std::uint32_t>(session->memory);
  out.device = session->device;
  std::copy(session->device_uuid.begin(), session->device_uuid.end(), out.device_uuid);
  std::copy(session->boot_id.begin(), session->boot_id.end(), out.boot_id);
  return write_struct(out, info);
}

kvd_status kvd_ping(kvd_handle* handle, uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.ping(duration(timeout_ns)));
}

kvd_status kvd_region_allocate(kvd_handle* handle, uint64_t bytes, uint64_t timeout_ns,
                               kvd_region* region) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (!is_writable(region)) return invalid(kNoStruct);
  const auto taken = handle->client.allocate_region(bytes, duration(timeout_ns));
  if (!taken.ok()) return fail(taken.error());
  return write_struct(to_c(*taken), region);
}

kvd_status kvd_region_free(kvd_handle* handle, uint64_t region_id, uint64_t timeout_ns) {
  if (handle == nullptr) return invalid(kNoHandle);
  return done(handle->client.free_region(region_id, duration(timeout_ns)));
}

const char* kvd_last_error(void) { return last_error.c_str(); }

const char* kvd_strerror(kvd_status status) {
  return kc::name(static_cast<kc::ErrorCode>(status)).data();
}
