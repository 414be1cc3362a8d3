#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "client_lib/src/abi/c_handle.hpp"

using namespace kvd::client::c;  // NOLINT(google-build-using-namespace): this file is C outside

namespace {

// The layout is a public standard (DLPack 0.8): whoever takes the tensor has its own declaration.
static_assert(sizeof(kvd_dl_device) == 8 && sizeof(kvd_dl_data_type) == 4);
static_assert(sizeof(kvd_dl_tensor) == 48 && offsetof(kvd_dl_tensor, device) == 8 &&
              offsetof(kvd_dl_tensor, ndim) == 16 && offsetof(kvd_dl_tensor, dtype) == 20 &&
              offsetof(kvd_dl_tensor, shape) == 24 && offsetof(kvd_dl_tensor, strides) == 32 &&
              offsetof(kvd_dl_tensor, byte_offset) == 40);
static_assert(sizeof(kvd_dl_managed_tensor) == 64 &&
              offsetof(kvd_dl_managed_tensor, manager_ctx) == 48 &&
              offsetof(kvd_dl_managed_tensor, deleter) == 56);

constexpr std::int32_t kCpu = 1;
constexpr std::int32_t kCuda = 2;
constexpr kvd_dl_data_type kByte{1, 8, 1};

/// A tensor together with what it needs to live.
struct RegionTensor {
  kvd_dl_managed_tensor managed{};
  std::array<std::int64_t, 1> shape{};
  std::array<std::int64_t, 1> strides{1};  // NULL is allowed no more from DLPack 1.2 on
  pid_t owner = ::getpid();
  std::shared_ptr<const void> mapping;
};

void delete_tensor(kvd_dl_managed_tensor* self) {
  if (self == nullptr) return;
  auto* const tensor = static_cast<RegionTensor*>(self->manager_ctx);
  // Nothing is mapped in a forked child, and what stands there now is not ours to unmap.
  if (tensor->owner != ::getpid()) new std::shared_ptr(std::move(tensor->mapping));
  delete tensor;
}

kvd_dl_managed_tensor* tensor_of(const kvd_client::RegionView& view) {
  auto tensor = std::make_unique<RegionTensor>();
  tensor->mapping = view.mapping;
  tensor->shape = {static_cast<std::int64_t>(view.bytes)};
  const bool is_host = view.device < 0;
  kvd_dl_tensor& out = tensor->managed.dl_tensor;
  out.data = view.address;
  out.device = {is_host ? kCpu : kCuda, is_host ? 0 : view.device};
  out.ndim = 1;
  out.dtype = kByte;
  out.shape = tensor->shape.data();
  out.strides = tensor->strides.data();
  tensor->managed.manager_ctx = tensor.get();
  tensor->managed.deleter = delete_tensor;
  return &tensor.release()->managed;
}

}  // namespace

kvd_status kvd_region_dlpack(kvd_handle* handle, uint64_t region_id, uint64_t timeout_ns,
                             kvd_dl_managed_tensor** tensor) {
  if (handle == nullptr) return invalid(kNoHandle);
  if (tensor == nullptr) return invalid("tensor is NULL");
  const auto view = handle->client.view_region(region_id, duration(timeout_ns));
  if (!view.ok()) return fail(view.error());
  *tensor = tensor_of(*view);
  return KVD_OK;
}
