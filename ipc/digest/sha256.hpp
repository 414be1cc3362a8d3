#pragma once

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
  [[nodiscard]] Digest operator()(ByteView text);

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
    void operator()(evp_md_st* algorithm) const;
  };
  std::unique_ptr<evp_md_st, Free> algorithm_;
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

/// HMAC-SHA256. Source: RFC 2104.
[[nodiscard]] Digest hmac_sha256(ByteView secret, ByteView text);

}  // namespace kvd::digest
