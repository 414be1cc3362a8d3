#pragma once

#include "kernels/device/device_backend.hpp"

namespace kvd::kernels {

/// Raises the word to the fence's value with release order, never lowers it, and wakes who sleeps
/// on its low 32 bits (see Fence). Precondition: the batch's bytes are complete, non-temporal
/// stores fenced.
void publish(const Fence& fence);
/// Wakes who sleeps on a word that somebody else, a copy engine, has written.
void wake(const Fence& fence);

}  // namespace kvd::kernels
