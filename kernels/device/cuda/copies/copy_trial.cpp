#include "kernels/device/cuda/copies/copy_trial.hpp"

#include <cstring>

#include "kernels/device/cuda/driver/error.hpp"

namespace kvd::kernels::cuda {
namespace {

constexpr std::size_t kPieces = 4;
constexpr std::size_t kPiece = std::size_t{64} << 10;
constexpr std::size_t kAll = kPieces * kPiece;

std::byte byte_at(std::size_t i) { return static_cast<std::byte>(i * 37 + i / 251 + 1); }

// Every second piece comes first, so that the batch is not one single run.
CopyList pieces(std::uintptr_t to, std::uintptr_t from) {
  CopyList list;
  for (const std::size_t piece : {1u, 3u, 0u, 2u}) {
    list.add(to + piece * kPiece, from + piece * kPiece, kPiece, 0);
  }
  return list;
}

/// Empty if the bytes came through; otherwise the reason.
Result<std::string> try_form(CopyForm form, const CopyTrial& trial) {
  const auto& [driver, stream, device, host, limit] = trial;
  auto* const sent = reinterpret_cast<std::byte*>(host.address());
  std::byte* const back = sent + kAll;
  for (std::size_t i = 0; i < kAll; ++i) sent[i] = byte_at(i);
  std::memset(back, 0, kAll);
  CopyList in = pieces(device.address(), host.address());
  CopyList out = pieces(host.address() + kAll, device.address());
  CUresult result = stream.copy(in, form);
  if (result == CUDA_SUCCESS) result = stream.copy(out, form);
  // Drains after a refusal as well, because some of the batch may be under way.
  const CUresult drained = stream.drain(limit);
  if (drained != CUDA_SUCCESS) return error_of(driver, drained, "trying out copies");
  if (severity(result) == Severity::kFatal) return error_of(driver, result, "trying out copies");
  if (result != CUDA_SUCCESS) return error_of(driver, result, "trying out copies").message;
  const bool came = std::memcmp(sent, back, kAll) == 0;
  return std::string(came ? "" : "copies were made and other bytes arrived");
}

}  // namespace

Result<CopyDecision> settle_copies(CopyChoice choice, const Capabilities& capabilities,
                                   const CopyTrial& trial) {
  CopyDecision decision;
  if (!Stream::can_batch(trial.driver)) {
    decision.fallback = "this driver has no batches of copies (CUDA 12.8 brought them)";
  } else if (!capabilities.host_addresses) {
    decision.fallback = "batches would need the host's addresses here (attribute 91 is 0)";
  }
  if (choice == CopyChoice::kBatch && !decision.fallback.empty()) {
    return make_error(ErrorCode::kUnsupported,
                      decision.fallback + ": leave the choice to kvd (CopyChoice::kAuto)");
  }
  if (choice == CopyChoice::kSingle) return CopyDecision{CopyForm::kSingle, ""};
  if (choice == CopyChoice::kBatch) return decision;
  if (decision.fallback.empty()) {
    KVD_ASSIGN_OR_RETURN(decision.fallback, try_form(CopyForm::kBatch, trial));
    if (decision.fallback.empty()) return decision;
  }
  decision.form = CopyForm::kSingle;
  KVD_ASSIGN_OR_RETURN(const std::string broken, try_form(CopyForm::kSingle, trial));
  if (broken.empty()) return decision;
  return make_error(ErrorCode::kDeviceError, "the device does not copy: " + broken);
}

}  // namespace kvd::kernels::cuda
