#include "kvd/daemon/config/config_values.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace kvd::daemon {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

// Largest first, the order in which format() tries them.
constexpr std::array<Unit, 6> kByteUnits = {{{"PiB", std::int64_t{1} << 50},
                                             {"TiB", std::int64_t{1} << 40},
                                             {"GiB", std::int64_t{1} << 30},
                                             {"MiB", std::int64_t{1} << 20},
                                             {"KiB", std::int64_t{1} << 10},
                                             {"B", 1}}};
constexpr std::array<Unit, 6> kTimeUnits = {{{"h", 3'600'000'000'000},
                                             {"m", 60'000'000'000},
                                             {"s", 1'000'000'000},
                                             {"ms", 1'000'000},
                                             {"us", 1'000},
                                             {"ns", 1}}};

Error invalid(const std::string& text, const std::string& why) {
  return make_error(ErrorCode::kInvalidArgument, "\"" + text + "\" " + why);
}

/// A text, split into its number and the rest.
struct Measure {
  std::string number;
  std::string unit;
};

Measure split(const std::string& text) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::size_t unit = std::min(text.find_first_not_of(' ', end), text.size());
  return {text.substr(0, end), text.substr(unit)};
}

template <class T>
bool read_all(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, value);
  return fault == std::errc() && stop == end;
}

/// number * factor; none when it is no number, does not fit or would become nothing.
std::optional<std::int64_t> scaled(const std::string& number, std::int64_t factor) {
  std::int64_t whole = 0;
  std::int64_t product = 0;
  // Whole numbers take the exact path, because doubles round from 2^53 on.
  if (number.find('.') == std::string::npos) {
    if (!read_all(number, whole) || __builtin_mul_overflow(whole, factor, &product)) return {};
    return product;
  }
  double fraction = 0;
  if (!read_all(number, fraction)) return {};
  const double result = fraction * static_cast<double>(factor);
  // 2^63 itself is exact in a double, and the first value that does not fit.
  if (!(result < 9223372036854775808.0) || (fraction > 0 && result < 1)) return {};
  return static_cast<std::int64_t>(result);
}

/// `remedy` ends every message. A number without a unit counts single bytes or nanoseconds.
Result<std::int64_t> parse_measure(const std::string& text, std::span<const Unit> units,
                                   const std::string& remedy) {
  if (text.starts_with('-')) return invalid(text, "is negative; " + remedy);
  const Measure measure = split(text);
  const std::string unit = measure.unit.empty() ? std::string(units.back().name) : measure.unit;
  for (const Unit& candidate : units) {
    if (candidate.name != unit || measure.number.empty() || measure.number == ".") continue;
    const auto value = scaled(measure.number, candidate.factor);
    if (!value) return invalid(text, "is too large, too small or no number; " + remedy);
    return *value;
  }
  return invalid(text, "is not understood; " + remedy);
}

std::string format_measure(std::int64_t value, std::span<const Unit> units) {
  for (const Unit& unit : units) {
    if (value != 0 && value % unit.factor == 0) {
      return std::to_string(value / unit.factor) + std::string(unit.name);
    }
  }
  return "0" + std::string(units.back().name);
}

std::string format_bytes(const Bytes& size) { return format_measure(size.value, kByteUnits); }
std::string format_duration(const Nanoseconds& time) {
  return format_measure(time.count(), kTimeUnits);
}

Result<BytesPerSecond> parse_rate(const std::string& text) {
  const std::string size = text.ends_with("/s") ? text.substr(0, text.size() - 2) : text;
  const Result<Bytes> bytes = parse_bytes(size);
  if (!bytes.ok()) return invalid(text, R"(is no rate; write "10GiB/s" or "unlimited")");
  return BytesPerSecond{static_cast<double>(bytes->value)};
}
std::string format_rate(const BytesPerSecond& rate) {
  return format_bytes(Bytes(static_cast<std::int64_t>(rate.value))) + "/s";
}

Result<double> parse_number(const std::string& text) {
  double value = 0;
  if (!read_all(text, value) || !std::isfinite(value)) return invalid(text, "is no finite number");
  return value;
}
std::string format_number(const double& value) {
  std::array<char, 32> text{};
  // The shortest text that reads back to the same double.
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

template <class T>
Result<T> parse_integer(const std::string& text) {
  using Limits = std::numeric_limits<T>;
  T value = 0;
  if (!read_all(text, value)) {
    return invalid(text, "is no whole number from " + std::to_string(Limits::min()) + " to " +
                             std::to_string(Limits::max()));
  }
  return value;
}
std::string format_integer(std::int64_t value) { return std::to_string(value); }

Result<std::vector<std::uint32_t>> parse_id_list(const std::string& text) {
  if (!text.starts_with('[') || !text.ends_with(']')) {
    return invalid(text, "is no list; write [1000, 1001]");
  }
  std::vector<std::uint32_t> ids;
  for (std::size_t at = 1; at + 1 < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size() - 1);
    const std::string number = text.substr(at, end - at);
    KVD_ASSIGN_OR_RETURN(const std::uint32_t id, parse_integer<std::uint32_t>(number));
    // The kernel uses the highest id for "no id".
    if (id == UINT32_MAX) return invalid(number, "is no user or group id");
    ids.push_back(id);
    at = std::min(text.find_first_not_of(" ,", end), text.size());
  }
  return ids;
}
std::string format_id_list(const std::vector<std::uint32_t>& ids) {
  std::string text = "[";
  for (const std::uint32_t id : ids) text += (text.size() > 1 ? ", " : "") + std::to_string(id);
  return text + "]";
}

// The text is written again into logs, TOML and systemd's drop-in, one line each.
Result<std::string> parse_text(const std::string& text) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::none_of(text.begin(), text.end(), is_control)) return text;
  std::string shown = text;
  std::replace_if(shown.begin(), shown.end(), is_control, '?');
  return invalid(shown, "has a line break, a tab or another control character: take it out");
}
std::string format_text(const std::string& text) { return text; }

using Words = std::vector<std::string_view>;

/// The place of the text among the words.
Result<std::size_t> parse_word(const std::string& text, const Words& words) {
  const auto found = std::find(words.begin(), words.end(), text);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  std::string list;
  for (const std::string_view word : words) list += (list.empty() ? "" : ", ") + std::string(word);
  return invalid(text, "is none of " + list);
}

/// One of the words, each of which stands for the value of its place.
template <class T>
Spelling<T> choice(const Words& words, bool plain = false) {
  return {[words](const std::string& text) -> Result<T> {
            KVD_ASSIGN_OR_RETURN(const std::size_t place, parse_word(text, words));
            return static_cast<T>(place);
          },
          [words](const T& value) { return std::string(words[static_cast<std::size_t>(value)]); },
          plain};
}

/// One of the words, kept as it is.
Spelling<std::string> one_of(const Words& words) {
  return {[words](const std::string& text) -> Result<std::string> {
            KVD_TRY(parse_word(text, words));
            return text;
          },
          format_text};
}

/// Like `usual`, with a word that stands for one value.
template <class T>
Spelling<T> with_word(const char* word, T special, const Spelling<T>& usual) {
  return {[=](const std::string& text) { return text == word ? special : usual.parse(text); },
          [=](const T& value) { return value == special ? word : usual.format(value); }};
}

/// Like `usual`, with "auto" for no value.
template <class T>
Spelling<std::optional<T>> or_auto(const Spelling<T>& usual) {
  return {[=](const std::string& text) -> Result<std::optional<T>> {
            if (text == "auto") return std::optional<T>();
            KVD_ASSIGN_OR_RETURN(const T value, usual.parse(text));
            return std::optional(value);
          },
          [=](const std::optional<T>& value) { return value ? usual.format(*value) : "auto"; }};
}

}  // namespace

const Spelling<std::string> kText = {parse_text, format_text};
const Spelling<std::string> kLogLevel =
    one_of({"trace", "debug", "info", "warn", "error", "critical", "off"});
const Spelling<std::string> kCudaDram = one_of({"memfd", "host_numa", "auto"});
const Spelling<BackendChoice> kBackend = choice<BackendChoice>({"auto", "host", "cuda"});
const Spelling<bool> kBool = choice<bool>({"false", "true"}, true);
const Spelling<bool> kAutoOrNever = choice<bool>({"never", "auto"});
const Spelling<bool> kTouchedOrAll = choice<bool>({"touched", "all"});
const Spelling<admin::ReadPolicy> kReadPolicy =
    choice<admin::ReadPolicy>({"auto", "open", "token"});
const Spelling<store::EvictionKind> kEviction = {
    store::eviction_kind, [](store::EvictionKind kind) { return std::string(store::name(kind)); }};
const Spelling<Bytes> kSize = {parse_bytes, format_bytes};
const Spelling<Bytes> kSizeOrAuto = with_word("auto", Bytes(0), kSize);
const Spelling<Bytes> kSizeOrUnlimited = with_word("unlimited", Bytes(INT64_MAX), kSize);
const Spelling<std::optional<Bytes>> kOptionalSize = or_auto(kSize);
const Spelling<BytesPerSecond> kRate =
    with_word("unlimited", BytesPerSecond{0}, Spelling<BytesPerSecond>{parse_rate, format_rate});
const Spelling<Nanoseconds> kDuration = {parse_duration, format_duration};
const Spelling<std::optional<Nanoseconds>> kDurationOrAuto = or_auto(kDuration);
const Spelling<Nanoseconds> kDurationOrNever = with_word("never", Nanoseconds(0), kDuration);
const Spelling<double> kNumber = {parse_number, format_number, true};
const Spelling<std::uint32_t> kCount = {parse_integer<std::uint32_t>, format_integer, true};
const Spelling<std::uint16_t> kPort = {parse_integer<std::uint16_t>, format_integer, true};
const Spelling<std::vector<std::uint32_t>> kIdList = {parse_id_list, format_id_list, true};

Result<Bytes> parse_bytes(const std::string& text) {
  KVD_ASSIGN_OR_RETURN(
      const std::int64_t value,
      parse_measure(text, kByteUnits,
                    "write a size such as \"64GiB\" (B, KiB, MiB, GiB, TiB, PiB)"));
  return Bytes(value);
}

Result<Nanoseconds> parse_duration(const std::string& text) {
  const std::string remedy = R"(write a time such as "100ms" (ns, us, ms, s, m, h))";
  // A bare number could mean seconds or milliseconds; only zero is the same in both.
  if (split(text).unit.empty() && text.find_first_of("123456789") != std::string::npos) {
    return invalid(text, "has no unit; " + remedy);
  }
  KVD_ASSIGN_OR_RETURN(const std::int64_t value, parse_measure(text, kTimeUnits, remedy));
  return Nanoseconds(value);
}

}  // namespace kvd::daemon
