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
  kOutOfMemory = 1,
  kWouldBlock = 2,
  kNotFound = 3,
  kStaleSession = 4,
  kInvalidArgument = 5,
  kInfeasible = 6,
  kDeadlineExceeded = 7,
  kPeerGone = 8,
  kDeviceError = 9,
  kUnsupported = 10,
  kUnavailable = 11,
  kPermissionDenied = 12,
  kQuotaExceeded = 13,
  kInternal = 14,
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
                                         "Internal"};
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

/// A value or an Error. Value access without checking is a bug and aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  // Implicit, so that a function returns what it has.
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

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
  void check() const {
    if (!ok()) [[unlikely]] {
      std::fprintf(stderr, "kvd: value() of a failed Result: %s\n",
                   std::get<1>(state_).to_string().c_str());
      std::abort();
    }
  }
  std::variant<T, Error> state_;
};

/// Success or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
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
  std::optional<Error> error_;
};

inline Error make_error(ErrorCode code, std::string message) { return {code, std::move(message)}; }

}  // namespace kvd

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
