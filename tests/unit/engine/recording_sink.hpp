#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client_lib/engine/serve/completion.hpp"
#include "tests/support/patience.hpp"

namespace kvd::engine {

/// Keeps what a user would have got.
class RecordingSink final : public TokenSink {
 public:
  struct Record {
    bool accepted = false;
    std::uint64_t found = 0;
    std::vector<Token> tokens;
    std::vector<std::uint64_t> digests;
    std::string text;
    std::optional<FinishReason> reason;
    std::optional<Error> error;
  };

  void accepted() override {
    change([](Record& r) { r.accepted = true; });
  }
  void found(std::uint64_t tokens) override {
    change([&](Record& r) { r.found = tokens; });
  }
  void token(const Piece& piece) override {
    change([&](Record& r) {
      r.tokens.push_back(piece.token);
      r.text += piece.text;
      if (piece.digest) r.digests.push_back(*piece.digest);
    });
  }
  void ended(FinishReason reason, const std::string& tail) override {
    change([&](Record& r) {
      r.reason = reason;
      r.text += tail;
    });
  }
  void failed(const Error& error) override {
    change([&](Record& r) { r.error = error; });
  }
  void idle() override {}

  [[nodiscard]] Record now() const {
    const std::lock_guard lock(mutex_);
    return record_;
  }
  /// Once the condition holds; nothing when it did not in time.
  template <class Condition>
  [[nodiscard]] std::optional<Record> wait(Condition condition) const {
    std::unique_lock lock(mutex_);
    const auto met = [&] { return condition(record_); };
    if (!changed_.wait_for(lock, test::kPatience, met)) return std::nullopt;
    return record_;
  }
  [[nodiscard]] Record end() const {
    return wait([](const Record& r) { return r.reason || r.error; }).value_or(Record{});
  }

 private:
  template <class Change>
  void change(Change apply) {
    const std::lock_guard lock(mutex_);
    apply(record_);
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Record record_;
};

}  // namespace kvd::engine
