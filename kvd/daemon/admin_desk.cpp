#include "kvd/daemon/admin_desk.hpp"

#include <string_view>
#include <thread>
#include <vector>

#include "kvd/admin/link/snapshot.hpp"
#include "kvd/daemon/daemon.hpp"
#include "kvd/daemon/machine/admin_token.hpp"

namespace kvd::daemon {
namespace {

namespace link = admin::link;

constexpr Nanoseconds kBetweenQuestions = std::chrono::milliseconds(1);
constexpr Nanoseconds kQuestionsAtOnce = std::chrono::milliseconds(50);
constexpr Nanoseconds kBetweenSnapshots = std::chrono::milliseconds(100);
constexpr Nanoseconds kControlThread = std::chrono::seconds(1);
constexpr Nanoseconds kSend = std::chrono::seconds(10);
constexpr Bytes kMostQuestion{sizeof(link::Change) +
                              link::kMostAssignments * sizeof(link::Assignment)};

Error needs_token() {
  return make_error(ErrorCode::kPermissionDenied, "a change needs the text of admin.token");
}

Error malformed() {
  return make_error(ErrorCode::kInvalidArgument, "kvd-admin sent what is no question");
}

/// The time that the comparison takes depends only on the lengths.
bool equal_constant_time(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const char other = b.empty() ? '\0' : b[i % b.size()];
    difference |= static_cast<unsigned char>(a[i] ^ other);
  }
  return difference == 0;
}

}  // namespace

bool AdminDesk::is_token(const link::Token& sent) {
  const std::string_view text = link::text_of(sent);
  if (equal_constant_time(text, token_)) return true;
  if (!text.empty()) daemon_.refuse_token();  // a probe of /readyz sends none
  return false;
}

void AdminDesk::pace() {
  const TimePoint now = clock_.now();
  if (next_question_ > now + kQuestionsAtOnce) {
    std::this_thread::sleep_for(next_question_ - now - kQuestionsAtOnce);
  }
  next_question_ = std::max(now, next_question_) + kBetweenQuestions;
}

Status AdminDesk::serve(link::Channel& channel) {
  pace();
  KVD_ASSIGN_OR_RETURN(const link::Message message, channel.receive(kMostQuestion, kSend));
  if (!token_file_.empty()) restore_token(token_file_, token_);
  const auto answered = answer(message);
  link::Verdict verdict;
  if (!answered.ok()) {
    verdict.code = static_cast<std::uint32_t>(answered.error().code);
    verdict.message = link::to_text<sizeof verdict.message>(answered.error().message);
  }
  link::ByteVector reply;
  link::append(reply, verdict);
  if (answered.ok()) reply.insert(reply.end(), answered->begin(), answered->end());
  return channel.send(message.type, reply, kSend);
}

Result<link::ByteVector> AdminDesk::answer(const link::Message& message) {
  std::span<const std::byte> body = message.body;
  switch (message.type) {
    case link::Type::kStanding: {
      const auto token = link::take<link::Token>(body);
      if (!token) return malformed();
      link::ByteVector out;
      link::Standing standing;
      standing.bears_token = is_token(*token) ? 1u : 0u;
      standing.not_ready = link::to_text<sizeof standing.not_ready>(daemon_.why_not_ready());
      link::append(out, standing);
      return out;
    }
    case link::Type::kSnapshot:
      return snapshot();
    case link::Type::kChange:
      return change(body);
    case link::Type::kClearCache:
      return clear_cache(body);
    case link::Type::kBegin:
    case link::Type::kStarted:
      break;
  }
  return malformed();
}

Result<link::ByteVector> AdminDesk::snapshot() {
  const TimePoint now = clock_.now();
  if (now < next_snapshot_) std::this_thread::sleep_for(next_snapshot_ - now);
  next_snapshot_ = std::max(now, next_snapshot_) + kBetweenSnapshots;
  KVD_ASSIGN_OR_RETURN(admin::Snapshot taken, daemon_.snapshot(kControlThread));
  link::ByteVector out;
  link::encode(taken, out);
  if (out.size() + sizeof(link::Verdict) <= link::kMostSnapshot.size()) return out;
  return make_error(ErrorCode::kOutOfMemory,
                    "what there is to show is larger than 128 MiB: lower engine.max_requests");
}

Result<link::ByteVector> AdminDesk::change(std::span<const std::byte> body) {
  const auto head = link::take<link::Change>(body);
  if (!head || body.size() != head->count * sizeof(link::Assignment)) return malformed();
  if (!is_token(head->token)) return needs_token();
  std::vector<link::Assignment> assignments;
  while (auto assignment = link::take<link::Assignment>(body)) assignments.push_back(*assignment);
  KVD_ASSIGN_OR_RETURN(core::Tuning tuning,
                       daemon_.change(*head, std::move(assignments), kControlThread));
  next_snapshot_ = clock_.now();
  link::ByteVector out;
  link::encode(tuning, out);
  return out;
}

Result<link::ByteVector> AdminDesk::clear_cache(std::span<const std::byte> body) {
  const auto token = link::take<link::Token>(body);
  if (!token || !body.empty()) return malformed();
  if (!is_token(*token)) return needs_token();
  KVD_TRY(daemon_.clear_cache(kControlThread));
  next_snapshot_ = clock_.now();
  return link::ByteVector();
}

}  // namespace kvd::daemon
