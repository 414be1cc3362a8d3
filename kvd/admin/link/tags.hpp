#pragma once

#include <cstdint>
#include <string_view>

#include "ipc/vocabulary/fnv.hpp"
#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/link/messages.hpp"

namespace kvd::admin::link {

/// A tag of what is added, in order.
class TagSum {
 public:
  void add(std::string_view text) {
    hash_.add_bytes(text);
    hash_.add(0);
  }
  void add(std::int64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash_.add(static_cast<std::uint8_t>(static_cast<std::uint64_t>(number) >> shift));
    }
  }
  [[nodiscard]] std::uint64_t value() const { return hash_.value(); }

 private:
  Fnv1a hash_;
};

/// StaleSession where the change is meant for other versions only.
[[nodiscard]] Status check_tags(const Change& change, std::uint64_t tag);

}  // namespace kvd::admin::link
