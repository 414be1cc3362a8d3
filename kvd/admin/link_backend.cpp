#include "kvd/admin/link_backend.hpp"

#include <string>

namespace kvd::admin {
namespace {

/// kvd answers within a second, whatever its control thread does.
constexpr Nanoseconds kAnswer = std::chrono::seconds(10);

}  // namespace

void LinkBackend::open() {
  const std::lock_guard lock(mutex_);
  open_ = true;
}

Result<link::ByteVector> LinkBackend::ask(link::Type type, std::span<const std::byte> body) {
  if (!open_) return make_error(ErrorCode::kUnavailable, "kvd-admin is starting: ask again");
  Status sent = channel_.send(type, body, kAnswer);
  auto message = sent.ok() ? channel_.receive(link::kMostSnapshot, kAnswer)
                           : Result<link::Message>(sent.error());
  std::span<const std::byte> rest;
  std::optional<link::Verdict> verdict;
  if (message.ok() && message->type == type) {
    rest = message->body;
    verdict = link::take<link::Verdict>(rest);
  }
  if (!verdict) {
    on_broken_();
    return make_error(ErrorCode::kUnavailable, "the link to kvd is broken: ask again later");
  }
  if (verdict->code != 0) {
    return make_error(static_cast<ErrorCode>(verdict->code),
                      std::string(link::text_of(verdict->message)));
  }
  return link::ByteVector(rest.begin(), rest.end());
}

Result<std::shared_ptr<const Snapshot>> LinkBackend::snapshot() {
  const std::lock_guard lock(mutex_);
  if (kept_ != nullptr && clock_.now() - kept_at_ < kFresh) return kept_;
  KVD_ASSIGN_OR_RETURN(kept_, look());
  kept_at_ = clock_.now();
  return kept_;
}

void LinkBackend::keep_history() {
  const std::lock_guard lock(mutex_);
  (void)look();
}

Result<std::shared_ptr<const Snapshot>> LinkBackend::look() {
  KVD_ASSIGN_OR_RETURN(const link::ByteVector bytes, ask(link::Type::kSnapshot, {}));
  KVD_ASSIGN_OR_RETURN(Snapshot snapshot, link::decode_snapshot(bytes));
  if (history_->empty() || snapshot.now - history_->back().at >= kMoment) {
    History longer;
    for (const Moment& one : *history_) {
      if (snapshot.now - one.at < kHistory) longer.push_back(one);
    }
    longer.push_back({snapshot.now, snapshot.status.counters});
    history_ = std::make_shared<const History>(std::move(longer));
  }
  snapshot.history = history_;
  return std::make_shared<const Snapshot>(std::move(snapshot));
}

Result<link::Standing> LinkBackend::standing(std::string_view token) {
  const std::lock_guard lock(mutex_);
  // A text that is cut off cannot be the token: kvd's tokens are shorter.
  const auto sent = link::to_text<sizeof(link::Token)>(token);
  KVD_ASSIGN_OR_RETURN(const link::ByteVector bytes,
                       ask(link::Type::kStanding, std::as_bytes(std::span(sent))));
  std::span<const std::byte> rest = bytes;
  return link::take<link::Standing>(rest).value_or(link::Standing{});
}

Result<core::Tuning> LinkBackend::change(std::string_view token, const TuningPatch& patch) {
  link::Change change;
  change.token = link::to_text<sizeof(link::Token)>(token);
  change.part = patch.part;
  if (patch.if_match) {
    change.conditional = 1;
    for (const std::uint64_t tag : *patch.if_match) {
      if (change.tag_count < link::kMostTags) change.tags[change.tag_count++] = tag;
    }
  }
  change.count = static_cast<std::uint32_t>(patch.assignments.size());
  link::ByteVector body;
  link::append(body, change);
  for (const link::Assignment& assignment : patch.assignments) link::append(body, assignment);
  const std::lock_guard lock(mutex_);
  KVD_ASSIGN_OR_RETURN(const link::ByteVector bytes, ask(link::Type::kChange, body));
  kept_ = nullptr;  // what is read from now on shows the change
  return link::decode_tuning(bytes);
}

Status LinkBackend::clear_cache(std::string_view token) {
  const auto sent = link::to_text<sizeof(link::Token)>(token);
  const std::lock_guard lock(mutex_);
  KVD_TRY(ask(link::Type::kClearCache, std::as_bytes(std::span(sent))));
  kept_ = nullptr;
  return {};
}

}  // namespace kvd::admin
