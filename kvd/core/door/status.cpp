#include "kvd/core/door/status.hpp"

#include <cstddef>

namespace kvd::core {

const char* name(RequestState state) {
  constexpr const char* kNames[kRequestStates] = {"waiting",      "prefill", "running",
                                                  "swapping_out", "rotary",  "swapping_in"};
  return kNames[static_cast<std::size_t>(state)];
}

}  // namespace kvd::core
