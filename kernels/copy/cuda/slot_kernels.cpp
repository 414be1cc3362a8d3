#include "kernels/copy/cuda/slot_kernels.hpp"

#include <algorithm>

#include "kernels/device/cuda/error.hpp"
#include "kernels/device/cuda/image.hpp"

KVD_EMBED_DEVICE_IMAGE(kvd_slot_kernels, KVD_SLOT_KERNELS_IMAGE, KVD_SLOT_KERNELS_IMAGE_PTX);

namespace kvd::kernels::cuda {
namespace {

// These must equal the constants in slot_kernels.cu.
constexpr unsigned kThreads = 256;
constexpr std::int64_t kChunk = 16384;
constexpr std::int64_t kUnit = 16;

bool aligned(CUdeviceptr address, std::int64_t to) {
  return address % static_cast<CUdeviceptr>(to) == 0;
}

Status validate(const SlotCopy& copy) {
  if (copy.packed == 0 || copy.slots == 0 || !aligned(copy.packed, kUnit) ||
      !aligned(copy.slots, sizeof(CUdeviceptr))) {
    return make_error(ErrorCode::kInvalidArgument,
                      "slot copy: the packed run must be aligned to 16 bytes, the list to 8");
  }
  if (copy.slot_bytes <= Bytes(0) || copy.slot_bytes.value % kUnit != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "slot copy: slots of " + std::to_string(copy.slot_bytes.value) +
                          " bytes; a positive multiple of 16 is needed");
  }
  if (copy.max_blocks == 0) {
    return make_error(ErrorCode::kInvalidArgument, "slot copy: at least one block is needed");
  }
  return {};
}

unsigned blocks_for(const SlotCopy& copy) {
  const std::int64_t chunks = (copy.slot_bytes.value + kChunk - 1) / kChunk * copy.count;
  return static_cast<unsigned>(std::min<std::int64_t>(chunks, copy.max_blocks));
}

}  // namespace

Result<SlotKernels> SlotKernels::load(const Driver& driver) {
  KVD_ASSIGN_OR_RETURN(const CUmodule module,
                       load_image(driver, {kvd_slot_kernels_image, kvd_slot_kernels_ptx},
                                  "loading the slot kernels"));
  CUfunction gather = nullptr, scatter = nullptr;
  KVD_TRY(check(driver, driver.module_get_function(&gather, module, "kvd_gather_slots"),
                "finding kvd_gather_slots"));
  KVD_TRY(check(driver, driver.module_get_function(&scatter, module, "kvd_scatter_slots"),
                "finding kvd_scatter_slots"));
  return SlotKernels(driver, gather, scatter);
}

Status SlotKernels::gather(CUstream stream, const SlotCopy& copy) const {
  return launch(gather_, stream, copy);
}

Status SlotKernels::scatter(CUstream stream, const SlotCopy& copy) const {
  return launch(scatter_, stream, copy);
}

Status SlotKernels::launch(CUfunction kernel, CUstream stream, const SlotCopy& copy) const {
  if (copy.count == 0) return {};
  KVD_TRY(validate(copy));
  CUdeviceptr packed = copy.packed, slots = copy.slots;
  auto slot_bytes = static_cast<unsigned long long>(copy.slot_bytes.value);
  unsigned count = copy.count;
  void* parameters[] = {&packed, &slots, &slot_bytes, &count};
  return check(*driver_,
               driver_->launch_kernel(kernel, blocks_for(copy), 1, 1, kThreads, 1, 1, 0, stream,
                                      parameters, nullptr),
               "launching a slot kernel");
}

}  // namespace kvd::kernels::cuda
