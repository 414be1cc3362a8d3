// What a Redis or Valkey server may say: any line of a reply, any value. No value is taken for a
// block that it is not.
#include <cstdint>
#include <optional>

#include "kvd/tiers/remote/resp.hpp"
#include "kvd/tiers/remote/socket.hpp"
#include "kvd/tiers/remote/value.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace kvd::fuzz {
namespace {

using namespace kvd::remote;  // NOLINT(google-build-using-namespace): the code under test
enum class Kind : std::uint8_t { kReply, kRefusal, kValue, kAddress };

constexpr std::size_t kGroup = 64;
const disk::ClassShape kShape{{1}, 2, Bytes(kGroup)};
const disk::BlockKey kKey{{2}, {3}};

struct Block {
  disk::Sector header{};
  std::array<std::array<std::byte, kGroup>, 2> groups{};
};

Block right() {
  Block block;
  block.groups[1].fill(std::byte{9});
  block.header = make_header(kShape, kKey, {block.groups[0], block.groups[1]}).value();
  return block;
}

void reply(View input) {
  const std::string line = text_of(input);
  const std::optional<Reply> read = parse_reply(line);
  if (!read) return;
  expect(read->text.size() < line.size(), "more text than there is");
  expect(read->kind != Reply::Kind::kBulk || read->number >= 0, "a value of less than nothing");
}

void refusal(View input) {
  const Refusal found = refusal_of(text_of(input));
  expect(found.error.code != ErrorCode::kOk && !found.error.message.empty(), "no error, or no why");
  for (const char letter : found.error.message) {
    expect(letter >= ' ' && letter <= '~', "a letter that a log line must not have");
  }
}

void value(View input) {
  auto read = take<Block>(input);
  Groups groups{read.groups[0], read.groups[1]};
  disk::SlotHeader said;
  disk::Fault fault = read_header(kShape, kKey, read.header, said);
  if (fault != disk::Fault::kNone) return;
  expect(said.sums.size() == groups.size() && said.key == kKey, "another block's header");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    fault = compare(said, i, groups);
    expect(fault == disk::Fault::kNone || fault == disk::Fault::kCorruptPayload, "another fault");
  }
}

}  // namespace

std::vector<Data> seeds() {
  std::vector<Data> all;
  const auto add_line = [&](Kind kind, std::string_view text) {
    add_text(all.emplace_back(Data{std::byte(kind)}), text);
  };
  for (const char* line : {"+OK", "-ERR unknown command 'GETEX'", ":1", "$4224", "$-1", "*2"}) {
    add_line(Kind::kReply, line);
  }
  for (const char* text : {"MOVED 1 10.0.0.1:6379", "NOAUTH Authentication required.", "OOM",
                           "WRONGTYPE Operation", "ERR AUTH <password> called without any"}) {
    add_line(Kind::kRefusal, text);
  }
  for (const char* address : {"cache-1:6379", "[::1]:1", "unix:/run/redis.sock"}) {
    add_line(Kind::kAddress, address);
  }
  add_pod(all.emplace_back(Data{std::byte(Kind::kValue)}), right());
  return all;
}

void run(View input) {
  const auto kind = Kind(take<std::uint8_t>(input) % 4);
  if (kind == Kind::kReply) reply(input);
  if (kind == Kind::kRefusal) refusal(input);
  if (kind == Kind::kValue) value(input);
  if (kind == Kind::kAddress) (void)check_address(text_of(input));
}

}  // namespace kvd::fuzz
