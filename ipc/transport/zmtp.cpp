#include "ipc/transport/zmtp.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "ipc/wire/messages.hpp"

namespace kvd::transport {
namespace {

using Bytes = std::span<const std::byte>;
constexpr ZmtpPeer::Piece kMissing{};
constexpr ZmtpPeer::Piece kBroken{0, true, std::nullopt};

constexpr std::size_t kGreetingBytes = 64;
constexpr std::size_t kVersionAt = 10;
constexpr std::size_t kMechanismAt = 12;
constexpr std::size_t kMechanismBytes = 20;
constexpr std::byte kMajor{3};

constexpr std::byte kLong{2};
constexpr std::byte kCommand{4};

/// Reads the socket type and the identity; a library may send other properties as well.
constexpr std::size_t kMaxCommand = 1024;
constexpr std::size_t kMaxPingContext = 16;

constexpr std::array<std::byte, kGreetingBytes> make_greeting() {
  std::array<std::byte, kGreetingBytes> greeting{};
  greeting[0] = std::byte{0xff};
  greeting[9] = std::byte{0x7f};
  greeting[kVersionAt] = kMajor;
  greeting[kVersionAt + 1] = std::byte{1};
  constexpr std::string_view kNull = "NULL";
  for (std::size_t i = 0; i < kNull.size(); ++i) greeting[kMechanismAt + i] = std::byte(kNull[i]);
  return greeting;
}
constexpr auto kGreeting = make_greeting();

void add(std::vector<std::byte>& out, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// A command of at most 255 bytes.
void add_command(std::vector<std::byte>& out, std::string_view name, Bytes rest) {
  out.push_back(kCommand);
  out.push_back(std::byte(1 + name.size() + rest.size()));
  out.push_back(std::byte(name.size()));
  add(out, name);
  out.insert(out.end(), rest.begin(), rest.end());
}

/// Without what follows its name.
bool is_command(Bytes body, std::string_view name) {
  return body.size() > name.size() && body[0] == std::byte(name.size()) &&
         std::memcmp(body.data() + 1, name.data(), name.size()) == 0;
}

std::uint64_t big_endian(Bytes bytes) {
  std::uint64_t number = 0;
  for (const std::byte byte : bytes) number = number << 8 | std::to_integer<std::uint64_t>(byte);
  return number;
}

/// Whether the properties of a READY name a DEALER. Unknown properties are passed over, and so is
/// the identity that the peer asks for.
bool is_dealer(Bytes properties) {
  bool dealer = false;
  while (!properties.empty()) {
    const auto name_bytes = std::to_integer<std::size_t>(properties[0]);
    if (properties.size() < 1 + name_bytes + 4) return false;
    const Bytes name = properties.subspan(1, name_bytes);
    const std::uint64_t value_bytes = big_endian(properties.subspan(1 + name_bytes, 4));
    properties = properties.subspan(1 + name_bytes + 4);
    if (properties.size() < value_bytes) return false;
    const Bytes value = properties.first(value_bytes);
    properties = properties.subspan(value_bytes);
    const auto same = [](Bytes bytes, std::string_view text) {
      return std::ranges::equal(bytes, std::as_bytes(std::span(text)));
    };
    if (same(name, "Socket-Type")) dealer = same(value, "DEALER");
  }
  return dealer;
}

/// Flags and length of a frame.
struct Head {
  std::byte flags{};
  std::uint64_t body = 0;
  std::size_t bytes = 0;
};

/// None while it has not all come.
std::optional<Head> head_at(Bytes bytes) {
  const bool is_long = !bytes.empty() && (bytes[0] & kLong) != std::byte{0};
  const std::size_t length = is_long ? 8 : 1;
  if (bytes.size() < 1 + length) return std::nullopt;
  return Head{bytes[0], big_endian(bytes.subspan(1, length)), 1 + length};
}

}  // namespace

Bytes ZmtpPeer::greeting() { return kGreeting; }

ZmtpPeer::Piece ZmtpPeer::next(Bytes bytes, std::vector<std::byte>& answer) {
  if (state_ == State::kGreeting) return take_greeting(bytes, answer);
  // The first part of a message shows whether there are more.
  if (!bytes.empty() && (bytes[0] & ~(kLong | kCommand)) != std::byte{0}) return kBroken;
  const auto head = head_at(bytes);
  if (!head) return kMissing;
  const bool command = (head->flags & kCommand) != std::byte{0};
  if (!command && state_ != State::kMessages) return kBroken;
  if (head->body > (command ? kMaxCommand : wire::kMaxCommandFrame)) return kBroken;
  if (bytes.size() < head->bytes + head->body) return kMissing;
  const Bytes body = bytes.subspan(head->bytes, head->body);
  const std::size_t taken = head->bytes + body.size();
  if (command) return take_command(body, taken, answer);
  return {taken, false, body};
}

// The first ten bytes mean the same in all versions, and the eleventh does since version 2.
ZmtpPeer::Piece ZmtpPeer::take_greeting(Bytes bytes, std::vector<std::byte>& answer) {
  const bool versioned = (bytes.empty() || bytes[0] == kGreeting[0]) &&
                         (bytes.size() < kVersionAt || bytes[9] == kGreeting[9]) &&
                         (bytes.size() <= kVersionAt || bytes[kVersionAt] >= kMajor);
  if (!versioned) return kBroken;
  if (bytes.size() < kGreetingBytes) return kMissing;
  if (!std::ranges::equal(bytes.subspan(kMechanismAt, kMechanismBytes),
                          Bytes(kGreeting).subspan(kMechanismAt, kMechanismBytes))) {
    return kBroken;
  }
  constexpr std::string_view kRouter("\x0bSocket-Type\0\0\0\6ROUTER", 22);
  add_command(answer, "READY", std::as_bytes(std::span(kRouter)));
  state_ = State::kHandshake;
  return {kGreetingBytes, false, std::nullopt};
}

ZmtpPeer::Piece ZmtpPeer::take_command(Bytes body, std::size_t taken,
                                       std::vector<std::byte>& answer) {
  constexpr std::string_view kReady = "READY";
  constexpr std::string_view kPing = "PING";
  constexpr std::size_t kTimeToLive = 2;
  if (state_ == State::kHandshake) {
    if (!is_command(body, kReady) || !is_dealer(body.subspan(1 + kReady.size()))) return kBroken;
    state_ = State::kMessages;
    return {taken, false, std::nullopt};
  }
  const std::size_t context_at = 1 + kPing.size() + kTimeToLive;
  if (!is_command(body, kPing) || body.size() < context_at ||
      body.size() > context_at + kMaxPingContext) {
    return kBroken;
  }
  add_command(answer, "PONG", body.subspan(context_at));
  return {taken, false, std::nullopt};
}

std::size_t ZmtpPeer::head_of(std::size_t message, std::array<std::byte, kMaxHead>& head) {
  const bool is_long = message > 0xff;
  head[0] = is_long ? kLong : std::byte{0};
  const std::size_t length = is_long ? 8 : 1;
  for (std::size_t i = 0; i < length; ++i) {
    head[length - i] = std::byte(static_cast<std::uint8_t>(message >> (8 * i)));
  }
  return 1 + length;
}

}  // namespace kvd::transport
