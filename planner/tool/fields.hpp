#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ipc/vocabulary/result.hpp"

namespace kvd::planner {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

/// Reads one JSON object field by field. The first fault is kept, and later reads give their
/// default. So a reader is a plain list of fields with one status() at its end. Keys that were not
/// asked for are a fault, too.
class Fields {
 public:
  /// `path` names the object in messages: "requests[3]".
  Fields(const Json& object, std::string path);

  [[nodiscard]] bool has(const char* key);
  /// Any finite number. Without a default the key is required.
  [[nodiscard]] double number(const char* key, std::optional<double> otherwise = {});
  [[nodiscard]] double not_negative(const char* key, std::optional<double> otherwise = {});
  [[nodiscard]] double positive(const char* key, std::optional<double> otherwise = {});
  /// A whole number in 0..2^53.
  [[nodiscard]] std::int64_t whole(const char* key, std::optional<std::int64_t> otherwise = {});
  [[nodiscard]] std::string text(const char* key, const std::optional<std::string>& otherwise = {});
  [[nodiscard]] bool flag(const char* key, bool otherwise);
  /// The index of the text among the choices; the first is the default.
  [[nodiscard]] std::size_t choice(const char* key, const std::vector<const char*>& choices);
  /// The raw value, null where absent.
  [[nodiscard]] const Json& raw(const char* key);
  /// The elements of an array; empty where absent.
  [[nodiscard]] const Json& array(const char* key, bool required);
  [[nodiscard]] std::string path(const char* key) const;

  void fail(const std::string& message);
  /// Takes over the fault of an inner object.
  void merge(const Status& inner);
  /// Ok when every field was read well and no key was left over.
  [[nodiscard]] Status status();

 private:
  [[nodiscard]] const Json* find(const char* key, bool required);
  const Json& object_;
  std::string path_;
  std::set<std::string> asked_;
  std::optional<Error> fault_;
};

/// A whole number in 0..2^53, written 4 or 4.0.
[[nodiscard]] std::optional<std::int64_t> as_whole(const Json& value);

}  // namespace kvd::planner
