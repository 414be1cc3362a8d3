#include "client_lib/events/kv_events.hpp"

#include <bit>
#include <cstddef>
#include <string_view>

namespace kvd::events {
namespace {

constexpr std::string_view kNames[kMediums] = {"GPU", "CPU", "STORAGE"};

/// The part of MessagePack that events need, each value in its shortest form.
class Writer {
 public:
  void nil() { byte(0xc0); }
  void number(std::uint64_t value) {
    if (value < 0x80) return byte(value);
    std::size_t size = 1;
    unsigned code = 0xcc;
    for (; size < 8 && value >> (8 * size) != 0; size *= 2) ++code;
    big_endian(code, value, size);
  }
  void real(double value) { big_endian(0xcb, std::bit_cast<std::uint64_t>(value), 8); }
  void text(std::string_view value) {
    head(value.size(), 0xa0, 32, 0xd9, 1);
    out_ += value;
  }
  void array(std::size_t size) { head(size, 0x90, 16, 0xdc, 2); }
  void map(std::size_t size) { head(size, 0x80, 16, 0xde, 2); }
  template <class Number>
  void numbers(const std::vector<Number>& values) {
    array(values.size());
    for (const Number value : values) number(value);
  }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  void byte(std::uint64_t value) { out_ += static_cast<char>(value & 0xff); }
  void big_endian(unsigned code, std::uint64_t value, std::size_t size) {
    byte(code);
    for (std::size_t i = size; i-- > 0;) byte(value >> (8 * i));
  }
  /// A size below `most` is in the first byte; larger ones follow it, in `least` bytes or more.
  void head(std::size_t size, unsigned small, std::size_t most, unsigned large, std::size_t least) {
    if (size < most) return byte(small | size);
    for (; least < 4 && size >> (8 * least) != 0; least *= 2) ++large;
    big_endian(large, size, least);
  }

  std::string out_;
};

void write(Writer& to, const BlockStored& event) {
  to.map(10);
  to.text("type"), to.text("BlockStored");
  to.text("block_hashes"), to.numbers(event.hashes);
  to.text("parent_block_hash");
  event.parent ? to.number(*event.parent) : to.nil();
  to.text("token_ids"), to.numbers(event.tokens);
  to.text("block_size"), to.number(event.block_tokens);
  to.text("lora_id"), to.nil();
  to.text("medium"), to.text(kNames[static_cast<std::size_t>(event.medium)]);
  to.text("lora_name");
  event.lora.empty() ? to.nil() : to.text(event.lora);
  to.text("group_idx"), to.number(0);
  to.text("kv_cache_spec_kind"), to.text("full_attention");
}

void write(Writer& to, const BlockRemoved& event) {
  to.map(4);
  to.text("type"), to.text("BlockRemoved");
  to.text("block_hashes"), to.numbers(event.hashes);
  to.text("medium"), to.text(kNames[static_cast<std::size_t>(event.medium)]);
  to.text("group_idx"), to.number(0);
}

void write(Writer& to, const AllBlocksCleared&) {
  to.map(1);
  to.text("type"), to.text("AllBlocksCleared");
}

}  // namespace

std::string encode(double time, const std::vector<KvEvent>& events) {
  Writer to;
  to.array(3);
  to.real(time);
  to.array(events.size());
  for (const KvEvent& event : events) {
    std::visit([&](const auto& each) { write(to, each); }, event);
  }
  to.number(0);  // the data-parallel rank
  return to.take();
}

}  // namespace kvd::events
