#include "kernels/device/cuda/driver/context.hpp"

#include <utility>

#include "kernels/device/cuda/driver/error.hpp"

namespace kvd::kernels::cuda {

Result<PrimaryContext> PrimaryContext::retain(const Driver& driver, const Device& device) {
  CUcontext raw = nullptr;
  KVD_TRY(check(driver, driver.device_primary_ctx_retain(&raw, device.handle),
                "making a context on " + device.name));
  PrimaryContext context(driver, device.handle, raw);
  KVD_ASSIGN_OR_RETURN(const Memory memory, context.memory());
  context.used_at_start_ = memory.total - memory.free;
  return context;
}

PrimaryContext::PrimaryContext(PrimaryContext&& other) noexcept
    : driver_(other.driver_),
      device_(other.device_),
      context_(std::exchange(other.context_, nullptr)),
      used_at_start_(other.used_at_start_) {}

// A failure means that the context is dead already; then there is nothing left to give back.
PrimaryContext::~PrimaryContext() {
  if (context_ != nullptr) driver_->device_primary_ctx_release(device_);
}

Result<PrimaryContext::Memory> PrimaryContext::memory() const {
  const ScopedCurrent current(*this);
  KVD_TRY(current.status());
  std::size_t free = 0, total = 0;
  KVD_TRY(check(*driver_, driver_->mem_get_info(&free, &total), "asking for free memory"));
  return Memory{Bytes(static_cast<std::int64_t>(free)), Bytes(static_cast<std::int64_t>(total))};
}

ScopedCurrent::ScopedCurrent(const PrimaryContext& context)
    : driver_(context.driver()),
      status_(check(driver_, driver_.ctx_push_current(context.get()), "entering the context")) {
  (void)driver_.exchange_capture_mode(&mode_);
}

ScopedCurrent::~ScopedCurrent() {
  CUcontext left = nullptr;
  (void)driver_.exchange_capture_mode(&mode_);
  if (status_.ok()) driver_.ctx_pop_current(&left);
}

}  // namespace kvd::kernels::cuda
