#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ipc/vocabulary/human.hpp"
#include "ipc/vocabulary/result.hpp"
#include "ipc/vocabulary/units.hpp"
#include "kvd/daemon/config/config.hpp"

namespace kvd::daemon {

/// How a setting is spelled, for files, environment, flags and print-outs alike.
/// format(parse(text)) parses to the same value again. Errors of parse: InvalidArgument with a
/// message that says what is allowed and does not name the key.
template <class T>
struct Spelling {
  std::function<Result<T>(const std::string&)> parse;
  std::function<std::string(const T&)> format;
  bool plain = false;  ///< a TOML number or array, written without quotes
};

extern const Spelling<std::string> kText;  ///< of one line
extern const Spelling<std::string> kLogLevel;
extern const Spelling<std::string> kCudaDram;  ///< "memfd", "host_numa" or "auto"
extern const Spelling<BackendChoice> kBackend;
extern const Spelling<bool> kBool;          ///< "true" or "false"
extern const Spelling<bool> kAutoOrNever;   ///< true is "auto"
extern const Spelling<bool> kTouchedOrAll;  ///< true is "all"
extern const Spelling<admin::ReadPolicy> kReadPolicy;
extern const Spelling<store::EvictionKind> kEviction;

extern const Spelling<Bytes> kSize;
extern const Spelling<Bytes> kSizeOrAuto;                   ///< zero is "auto"
extern const Spelling<Bytes> kSizeOrUnlimited;              ///< INT64_MAX is "unlimited"
extern const Spelling<std::optional<Bytes>> kOptionalSize;  ///< none is "auto"
extern const Spelling<BytesPerSecond> kRate;                ///< zero is "unlimited"

extern const Spelling<Nanoseconds> kDuration;
extern const Spelling<std::optional<Nanoseconds>> kDurationOrAuto;  ///< none is "auto"
extern const Spelling<Nanoseconds> kDurationOrNever;                ///< zero is "never"

extern const Spelling<double> kNumber;
extern const Spelling<std::uint32_t> kCount;
extern const Spelling<std::uint16_t> kPort;
extern const Spelling<std::vector<std::uint32_t>> kIdList;  ///< "[1000, 1001]"

}  // namespace kvd::daemon
