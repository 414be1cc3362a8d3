#pragma once

#include <span>
#include <string_view>

namespace kvd::admin {

/// A file of the web console, compiled in. They hold no data: what they show, they ask for.
struct Resource {
  std::string_view path;  ///< "/" or "/console/NAME"
  std::string_view type;  ///< for Content-Type
  std::string_view body;
};

[[nodiscard]] std::span<const Resource> resources();
/// Null where the path names none.
[[nodiscard]] const Resource* resource_at(std::string_view path);

}  // namespace kvd::admin
