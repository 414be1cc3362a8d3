#include "ipc/digest/sha256.hpp"

#include <openssl/evp.h>

#include <algorithm>

#include "ipc/vocabulary/check.hpp"

namespace kvd::digest {

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }
void Sha256::Free::operator()(evp_md_st* algorithm) const { EVP_MD_free(algorithm); }

Sha256::Sha256()
    : algorithm_(EVP_MD_fetch(nullptr, "SHA2-256", nullptr)), context_(EVP_MD_CTX_new()) {
  KVD_CHECK(algorithm_ != nullptr && context_ != nullptr, "OpenSSL has no SHA-256");
}

Digest Sha256::operator()(ByteView text, ByteView more) {
  Digest digest;
  const bool ok = EVP_DigestInit_ex2(context_.get(), algorithm_.get(), nullptr) == 1 &&
                  EVP_DigestUpdate(context_.get(), text.data(), text.size()) == 1 &&
                  EVP_DigestUpdate(context_.get(), more.data(), more.size()) == 1 &&
                  EVP_DigestFinal_ex(context_.get(), digest.bytes.data(), nullptr) == 1;
  KVD_CHECK(ok, "OpenSSL's SHA-256 failed");
  return digest;
}

HmacSha256::HmacSha256(ByteView secret) {
  Block key{};
  if (secret.size() > key.size()) {
    const Digest shorter = sha256_(secret);
    std::copy(shorter.bytes.begin(), shorter.bytes.end(), key.begin());
  } else {
    std::copy(secret.begin(), secret.end(), key.begin());
  }
  for (std::size_t i = 0; i < key.size(); ++i) {
    inner_[i] = key[i] ^ 0x36;
    outer_[i] = key[i] ^ 0x5c;
  }
}

Digest HmacSha256::operator()(ByteView text) {
  return sha256_(outer_, sha256_(inner_, text).bytes);
}

}  // namespace kvd::digest
