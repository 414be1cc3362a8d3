#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#if defined(__GNUC__)
#define KVD_CLIENT_API __attribute__((visibility("default")))
#else
#define KVD_CLIENT_API
#endif

namespace kvd_client {

/// Why a call failed; the numbers are those of the wire and of kvd.h and never change their
/// meaning.
enum class ErrorCode : std::uint16_t {
  kOk = 0,
  kOutOfMemory = 1,       ///< not even after all that may be given up
  kWouldBlock = 2,        ///< not now: others hold it; try again
  kNotFound = 3,          ///< no such request, region or row
  kStaleSession = 4,      ///< of an earlier session: attach again
  kInvalidArgument = 5,   ///< breaks the protocol: a bug of the client
  kInfeasible = 6,        ///< waiting does not help: ask for less
  kDeadlineExceeded = 7,  ///< the time given ran out
  kPeerGone = 8,          ///< the client was opened by another process (a fork)
  kDeviceError = 9,       ///< a copy or allocation of the device failed
  kUnsupported = 10,      ///< a version or kind that this side lacks
  kUnavailable = 11,      ///< the daemon is gone, or was and came back without this call's requests
  kPermissionDenied = 12,  ///< the user may not, or a wrong key
  kQuotaExceeded = 13,     ///< the domain's maximum
  kInternal = 14,          ///< a bug of kvd
  kDraining = 15,          ///< out of service: send the request to another engine
};

/// The name of a code, e.g. "OutOfMemory".
KVD_CLIENT_API std::string_view name(ErrorCode code);

/// The code a program acts on and the sentence a person acts on.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  ///< names the remedy; holds no prompt, token or key
};

/// A value or an Error. Calls of this library throw nothing of their own: ask ok() first. Asking
/// for the wrong one throws std::bad_variant_access.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  [[nodiscard]] T& value() & { return std::get<0>(state_); }
  [[nodiscard]] const T& value() const& { return std::get<0>(state_); }
  [[nodiscard]] T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  [[nodiscard]] const Error& error() const { return std::get<1>(state_); }
  [[nodiscard]] ErrorCode code() const { return ok() ? ErrorCode::kOk : error().code; }

 private:
  std::variant<T, Error> state_;
};

/// Success or an Error: a Result of nothing.
using Status = Result<std::monostate>;

}  // namespace kvd_client
