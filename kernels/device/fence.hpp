#pragma once

#include "kernels/device/device_backend.hpp"

namespace kvd::kernels {

/// Raises the word to the fence's value with release order, never lowers it, and wakes waiters that
/// sleep on its low 32 bits (see Fence). Precondition: the batch's bytes are complete, non-temporal
/// stores fenced.
void publish(const Fence& fence);
/// Wakes waiters that sleep on a word that a copy engine has written.
void wake(const Fence& fence);

}  // namespace kvd::kernels
