#include "kvd/admin/link/tags.hpp"

#include <algorithm>

namespace kvd::admin::link {

Status check_tags(const Change& change, std::uint64_t tag) {
  const auto end = change.tags.begin() + std::min<std::size_t>(change.tag_count, kMostTags);
  if (change.conditional == 0 || std::find(change.tags.begin(), end, tag) != end) return {};
  return make_error(ErrorCode::kStaleSession,
                    "the document has changed since the ETag in If-Match; read it again");
}

}  // namespace kvd::admin::link
