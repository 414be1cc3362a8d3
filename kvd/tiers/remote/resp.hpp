#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "ipc/vocabulary/result.hpp"

/// The part of RESP2 that the remote tier speaks: pure. Source: the protocol's specification by
/// Redis.
namespace kvd::remote {

/// The longest line of a reply that is read; longer ones are no reply.
constexpr std::size_t kLongestLine = 1024;

void begin_command(std::string& out, std::size_t words);
void add_word(std::string& out, std::string_view word);
void add_command(std::string& out, std::initializer_list<std::string_view> words);

/// The first line of a reply, without its end.
struct Reply {
  enum class Kind : std::uint8_t { kText, kError, kNumber, kBulk, kNone } kind = Kind::kNone;
  std::int64_t number = 0;  ///< of kNumber, and the bytes of kBulk
  std::string_view text;    ///< of kText and kError
};
/// None: no reply that this tier's commands have.
[[nodiscard]] std::optional<Reply> parse_reply(std::string_view line);

/// What an error of the server means for the link.
struct Refusal {
  enum class Scope : std::uint8_t {
    kServer,  ///< nothing works there
    kWrites,  ///< reads do
    kValue,   ///< this key is none of kvd's
  } scope = Scope::kServer;
  Error error;  ///< with the remedy
};
[[nodiscard]] Refusal refusal_of(std::string_view text);

}  // namespace kvd::remote
