#pragma once

#include <span>
#include <string_view>

namespace kvd::admin {

/// A file that is compiled in: of the web console, or the description of the API. They hold no
/// data: what the console shows, it asks for.
struct Resource {
  std::string_view path;  ///< "/", "/console/NAME" or "/openapi.json"
  std::string_view type;  ///< for Content-Type
  std::string_view body;
};

[[nodiscard]] std::span<const Resource> resources();
/// Null where the path names none.
[[nodiscard]] const Resource* resource_at(std::string_view path);

}  // namespace kvd::admin
