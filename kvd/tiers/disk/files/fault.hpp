#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ipc/vocabulary/result.hpp"

namespace kvd::disk {

/// Why a load was a miss, or a store did not happen. Each has a counter in DiskStatus.
enum class Fault : std::uint8_t {
  kNone,
  kEmpty,           ///< the slot was never written
  kCorruptHeader,   ///< the header fails its sum, or says what no header says
  kCorruptPayload,  ///< a layer group fails its sum
  kOtherVersion,    ///< written in a format that this kvd does not know
  kOtherClass,      ///< fingerprint or shape of another class
  kOtherKey,        ///< another block, or that of another domain
  kOverwritten,     ///< the slot has been written again since
  kMisplaced,       ///< the header is that of another slot
  kTruncated,       ///< the file ends too early
  kVanished,        ///< the file or its device is gone (ESTALE, ENODEV, ENXIO, EBADF)
  kDeviceError,     ///< EIO, and every error without a name of its own here
  kFull,            ///< ENOSPC, EDQUOT, EFBIG
  kBusy,            ///< EAGAIN, ENOMEM
  kRefused,         ///< EINVAL, EOPNOTSUPP, EPERM
  kLowSpace,        ///< the file system has less room than the floor
  kTimedOut,        ///< the request's time was over
  kClosed,          ///< the tier closes
};
constexpr std::size_t kFaults = static_cast<std::size_t>(Fault::kClosed) + 1;

/// As in metrics and documents.
constexpr std::string_view name(Fault fault) {
  constexpr std::string_view kNames[kFaults] = {
      "none",          "empty",       "corrupt_header", "corrupt_payload",
      "other_version", "other_class", "other_key",      "overwritten",
      "misplaced",     "truncated",   "vanished",       "device_error",
      "full",          "busy",        "refused",        "low_space",
      "timed_out",     "closed"};
  return kNames[static_cast<std::size_t>(fault)];
}

/// What a client of the daemon is told.
constexpr ErrorCode error_code(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return ErrorCode::kOk;
    case Fault::kEmpty:
    case Fault::kOtherKey:
    case Fault::kOverwritten:
      return ErrorCode::kNotFound;
    case Fault::kOtherVersion:
    case Fault::kOtherClass:
    case Fault::kRefused:
      return ErrorCode::kUnsupported;
    case Fault::kFull:
    case Fault::kLowSpace:
      return ErrorCode::kOutOfMemory;
    case Fault::kBusy:
      return ErrorCode::kWouldBlock;
    case Fault::kTimedOut:
      return ErrorCode::kDeadlineExceeded;
    case Fault::kClosed:
      return ErrorCode::kUnavailable;
    default:
      return ErrorCode::kDeviceError;
  }
}

/// The fault that a positive errno stands for.
constexpr Fault fault_of_errno(int error) {
  switch (error) {
    case ESTALE:
    case ENODEV:
    case ENXIO:
    case EBADF:
      return Fault::kVanished;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Fault::kFull;
    case EAGAIN:
    case ENOMEM:
      return Fault::kBusy;
    case EINVAL:
    case EOPNOTSUPP:
    case EPERM:
      return Fault::kRefused;
    default:
      return Fault::kDeviceError;
  }
}

}  // namespace kvd::disk
