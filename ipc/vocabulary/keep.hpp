#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace kvd {

/// Keeps an object until the process ends, because a device may still use what it stands for.
/// A leak checker still finds it: it is kept, not lost. Thread-safe.
template <class T>
void keep_for_ever(std::unique_ptr<T> object) {
  struct Kept {
    std::mutex mutex;
    std::vector<std::shared_ptr<const void>> objects;
  };
  static Kept& kept = *new Kept;  // never destroyed, because that would destroy the objects
  const std::lock_guard lock(kept.mutex);
  kept.objects.emplace_back(std::move(object));
}

}  // namespace kvd
