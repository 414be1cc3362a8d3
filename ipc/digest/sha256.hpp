#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "ipc/vocabulary/digest.hpp"

struct evp_md_ctx_st;
struct evp_md_st;

namespace kvd::digest {

using ByteView = std::span<const std::uint8_t>;

/// SHA-256 of many short texts, one after the other: the context is made once and used again, since
/// making one costs three times as much as hashing a block of 16 tokens does. OpenSSL chooses the
/// processor's instructions for it.
/// Source: FIPS 180-4. Owner: one thread. Errors: none; an OpenSSL without SHA-256 aborts.
class Sha256 {
 public:
  Sha256();
  [[nodiscard]] Digest operator()(ByteView text) { return (*this)(text, {}); }
  /// Hashes both, one after the other.
  [[nodiscard]] Digest operator()(ByteView text, ByteView more);

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
    void operator()(evp_md_st* algorithm) const;
  };
  std::unique_ptr<evp_md_st, Free> algorithm_;
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

/// HMAC-SHA256 of many short texts under one secret. OpenSSL's takes six times as long, as it looks
/// its algorithm up by name each time.
/// Source: RFC 2104. Owner: one thread. Errors: as Sha256.
class HmacSha256 {
 public:
  explicit HmacSha256(ByteView secret);
  [[nodiscard]] Digest operator()(ByteView text);

 private:
  using Block = std::array<std::uint8_t, 64>;
  Sha256 sha256_;
  Block inner_{}, outer_{};
};

}  // namespace kvd::digest
