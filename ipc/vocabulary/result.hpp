#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "ipc/vocabulary/check.hpp"

namespace kvd {

/// The closed set of error codes, the same in C++, on the wire and in the C ABI. Numbers never
/// change their meaning. What each means to a user and how to get out of it: ipc/PROTOCOL.md.
enum class ErrorCode : std::uint16_t {
  kOk = 0,
  kOutOfMemory = 1,        ///< not even after all that may be given up
  kWouldBlock = 2,         ///< not now: others hold it; try again
  kNotFound = 3,           ///< no such request, region or row
  kStaleSession = 4,       ///< of an earlier session: attach again
  kInvalidArgument = 5,    ///< breaks the protocol: a bug of the client
  kInfeasible = 6,         ///< waiting does not help: ask for less
  kDeadlineExceeded = 7,   ///< the time given ran out
  kPeerGone = 8,           ///< the other process left, or this one was forked
  kDeviceError = 9,        ///< a copy or allocation of the device failed
  kUnsupported = 10,       ///< a version or kind that this side lacks
  kUnavailable = 11,       ///< no daemon: starting, draining or gone
  kPermissionDenied = 12,  ///< the user may not, or a wrong key
  kQuotaExceeded = 13,     ///< the domain's maximum
  kInternal = 14,          ///< a bug of kvd
  kDraining = 15,          ///< out of service: another engine takes the request
};

constexpr std::string_view name(ErrorCode code) {
  constexpr std::string_view kNames[] = {"Ok",
                                         "OutOfMemory",
                                         "WouldBlock",
                                         "NotFound",
                                         "StaleSession",
                                         "InvalidArgument",
                                         "Infeasible",
                                         "DeadlineExceeded",
                                         "PeerGone",
                                         "DeviceError",
                                         "Unsupported",
                                         "Unavailable",
                                         "PermissionDenied",
                                         "QuotaExceeded",
                                         "Internal",
                                         "Draining"};
  const auto index = static_cast<std::size_t>(code);
  return index < std::size(kNames) ? kNames[index] : std::string_view("Unknown");
}

/// Why something failed: the code a program acts on and the sentence a person acts on. The message
/// names the remedy and never holds prompts, tokens, keys or KV bytes.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;

  [[nodiscard]] std::string to_string() const { return std::string(name(code)) + ": " + message; }
};

/// A value or an Error. Value access without checking is a bug and aborts. No lock: one thread.
template <class T>
class [[nodiscard]] Result {
 public:
  // Implicit, so that a function can return a value or an error as it is.
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  [[nodiscard]] bool ok() const { return state_.index() == 0; }  // else error() says why
  explicit operator bool() const { return ok(); }                // as ok()

  [[nodiscard]] T& value() & { return check(), std::get<0>(state_); }
  [[nodiscard]] const T& value() const& { return check(), std::get<0>(state_); }
  [[nodiscard]] T&& value() && { return check(), std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  [[nodiscard]] const Error& error() const& {
    KVD_CHECK(!ok(), "error() of a Result that holds a value");
    return std::get<1>(state_);
  }
  [[nodiscard]] Error&& error() && {
    KVD_CHECK(!ok(), "error() of a Result that holds a value");
    return std::get<1>(std::move(state_));
  }

 private:
  void check() const {  // not KVD_CHECK: the message of the error is what helps
    if (!ok()) [[unlikely]] {
      std::fprintf(stderr, "kvd: value() of a failed Result: %s\n",
                   std::get<1>(state_).to_string().c_str());
      std::abort();
    }
  }
  std::variant<T, Error> state_;  // always one of the two
};

/// Success or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  // Implicit, as above.
  Status(Error error) : error_(std::move(error)) {}

  [[nodiscard]] bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const {
    KVD_CHECK(error_, "error() of a Status that is ok");
    return *error_;
  }
  [[nodiscard]] ErrorCode code() const { return error_ ? error_->code : ErrorCode::kOk; }

 private:
  std::optional<Error> error_;  // none: ok
};

inline Error make_error(ErrorCode code, std::string message) { return {code, std::move(message)}; }

}  // namespace kvd
// Two steps, so that __LINE__ is expanded before it is glued.
#define KVD_CONCAT_INNER(a, b) a##b
#define KVD_CONCAT(a, b) KVD_CONCAT_INNER(a, b)

/// Returns the error of a Status or Result expression to the caller, or goes on.
#define KVD_TRY(expression)                                              \
  do {                                                                   \
    if (const auto& kvd_try_status = (expression); !kvd_try_status.ok()) \
      return kvd_try_status.error();                                     \
  } while (false)

/// `KVD_ASSIGN_OR_RETURN(auto x, f())`: x takes the value, or the caller returns the error.
#define KVD_ASSIGN_OR_RETURN(target, expression)                 \
  auto KVD_CONCAT(kvd_result_, __LINE__) = (expression);         \
  if (!KVD_CONCAT(kvd_result_, __LINE__).ok())                   \
    return std::move(KVD_CONCAT(kvd_result_, __LINE__)).error(); \
  target = std::move(KVD_CONCAT(kvd_result_, __LINE__)).value()
