#include "ipc/digest/sha256.hpp"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "ipc/vocabulary/check.hpp"

namespace kvd::digest {

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }
void Sha256::Free::operator()(evp_md_st* algorithm) const { EVP_MD_free(algorithm); }

Sha256::Sha256()
    : algorithm_(EVP_MD_fetch(nullptr, "SHA2-256", nullptr)), context_(EVP_MD_CTX_new()) {
  KVD_CHECK(algorithm_ != nullptr && context_ != nullptr, "OpenSSL has no SHA-256");
}

Digest Sha256::operator()(ByteView text) {
  Digest digest;
  const bool ok = EVP_DigestInit_ex2(context_.get(), algorithm_.get(), nullptr) == 1 &&
                  EVP_DigestUpdate(context_.get(), text.data(), text.size()) == 1 &&
                  EVP_DigestFinal_ex(context_.get(), digest.bytes.data(), nullptr) == 1;
  KVD_CHECK(ok, "OpenSSL's SHA-256 failed");
  return digest;
}

Digest hmac_sha256(ByteView secret, ByteView text) {
  Digest digest;
  const auto* made = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), text.data(),
                          text.size(), digest.bytes.data(), nullptr);
  KVD_CHECK(made != nullptr, "OpenSSL's HMAC-SHA256 failed");
  return digest;
}

}  // namespace kvd::digest
