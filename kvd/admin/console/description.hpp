#pragma once

#include <string>
#include <string_view>

namespace kvd::admin {

/// openapi.json with the schemas of the policy document filled in, which follow from
/// core::tuning_keys(). Source: kvd. Precondition: `written` is openapi.json.
[[nodiscard]] std::string description_of(std::string_view written);

}  // namespace kvd::admin
