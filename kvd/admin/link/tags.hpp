#pragma once

#include <cstdint>
#include <string_view>

#include "ipc/vocabulary/result.hpp"
#include "kvd/admin/link/messages.hpp"

namespace kvd::admin::link {

/// A tag of what is added, in order: FNV-1a, 64 bits.
class TagSum {
 public:
  void add(std::string_view text) {
    for (const char c : text) add_byte(static_cast<unsigned char>(c));
    add_byte(0);
  }
  void add(std::int64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      add_byte(static_cast<unsigned char>(static_cast<std::uint64_t>(number) >> shift));
    }
  }
  [[nodiscard]] std::uint64_t value() const { return hash_; }

 private:
  void add_byte(unsigned char byte) { hash_ = (hash_ ^ byte) * 0x100000001b3ull; }
  std::uint64_t hash_ = 0xcbf29ce484222325ull;
};

/// StaleSession where the change is meant for other versions only.
[[nodiscard]] Status check_tags(const Change& change, std::uint64_t tag);

}  // namespace kvd::admin::link
