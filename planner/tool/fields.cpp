#include "planner/tool/fields.hpp"

#include <cmath>

namespace kvd::planner {
namespace {

const Json kAbsent;
const Json kNoElements = Json::array();

}  // namespace

std::optional<std::int64_t> as_whole(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  if (!(number >= 0) || number > 9007199254740992.0 || number != std::floor(number)) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(number);
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) fail((path_.empty() ? "the snapshot" : path_) + " must be an object");
}

std::string Fields::path(const char* key) const { return path_.empty() ? key : path_ + "." + key; }

void Fields::fail(const std::string& message) {
  if (!fault_) fault_ = make_error(ErrorCode::kInvalidArgument, message);
}

void Fields::merge(const Status& inner) {
  if (!inner.ok() && !fault_) fault_ = inner.error();
}

const Json* Fields::find(const char* key, bool required) {
  asked_.insert(key);
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(key);
  if (found != object_.end()) return &*found;
  if (required) fail(path(key) + " is missing");
  return nullptr;
}

bool Fields::has(const char* key) { return find(key, false) != nullptr; }

double Fields::number(const char* key, std::optional<double> otherwise) {
  const Json* value = find(key, !otherwise);
  if (!value) return otherwise.value_or(1);
  if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
  fail(path(key) + " must be a finite number");
  return otherwise.value_or(1);
}

double Fields::not_negative(const char* key, std::optional<double> otherwise) {
  const double value = number(key, otherwise);
  if (value < 0) fail(path(key) + " must not be negative");
  return value;
}

double Fields::positive(const char* key, std::optional<double> otherwise) {
  const double value = number(key, otherwise);
  if (value <= 0) fail(path(key) + " must be above 0");
  return value;
}

std::int64_t Fields::whole(const char* key, std::optional<std::int64_t> otherwise) {
  const Json* value = find(key, !otherwise);
  if (!value) return otherwise.value_or(1);
  if (const auto number = as_whole(*value)) return *number;
  fail(path(key) + " must be a whole number, 0 or more");
  return otherwise.value_or(1);
}

std::string Fields::text(const char* key, const std::optional<std::string>& otherwise) {
  const Json* value = find(key, !otherwise);
  if (!value) return otherwise.value_or("");
  if (value->is_string()) return value->get<std::string>();
  fail(path(key) + " must be a string");
  return otherwise.value_or("");
}

bool Fields::flag(const char* key, bool otherwise) {
  const Json* value = find(key, false);
  if (!value) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  fail(path(key) + " must be true or false");
  return otherwise;
}

std::size_t Fields::choice(const char* key, const std::vector<const char*>& choices) {
  const auto value = text(key, choices.front());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (value == choices[i]) return i;
  }
  std::string message = path(key) + " must be one of:";
  for (const auto* name : choices) message += std::string(" ") + name;
  fail(message);
  return 0;
}

const Json& Fields::raw(const char* key) {
  const Json* value = find(key, false);
  return value ? *value : kAbsent;
}

const Json& Fields::array(const char* key, bool required) {
  const Json* value = find(key, required);
  if (!value) return kNoElements;
  if (value->is_array()) return *value;
  fail(path(key) + " must be an array");
  return kNoElements;
}

Status Fields::status() {
  if (object_.is_object()) {
    for (const auto& [key, value] : object_.items()) {
      if (!asked_.contains(key)) fail("unknown key " + path(key.c_str()));
    }
  }
  if (fault_) return *fault_;
  return {};
}

}  // namespace kvd::planner
