/// kvd-llama-compare A B: are two recorded runs the same, bit for bit?
///
/// Equal tokens alone prove little: a model with few distinct tokens produces the same ones from a
/// wiped cache. So the logits are compared as bytes, and a run that is not diverse enough to mean
/// anything is refused.
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>

#include "client_lib/llama/driver/record.hpp"

namespace {

enum Exit : int { kIdentical = 0, kDifferent = 1, kUnreadable = 2, kVacuous = 3 };

struct Comparison {
  std::size_t steps = 0;            // compared
  std::size_t differing_steps = 0;  // of those
  std::size_t first_step = 0;       // where they first differ
  std::size_t first_logit = 0;
  float largest_difference = 0;
  bool same_length = true;
  std::set<std::int32_t> tokens;  // of the first run

  [[nodiscard]] bool identical() const { return differing_steps == 0 && same_length && steps > 0; }
};

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

void compare_step(const kvd_llama::Step& a, const kvd_llama::Step& b, Comparison* result) {
  const std::size_t step = result->steps++;
  result->tokens.insert(a.token);
  const std::size_t bytes = a.logits.size() * sizeof(float);
  if (a.token == b.token && std::memcmp(a.logits.data(), b.logits.data(), bytes) == 0) return;
  const bool first = result->differing_steps++ == 0;
  for (std::size_t i = a.logits.size(); i-- > 0;) {
    if (bits(a.logits[i]) == bits(b.logits[i])) continue;
    if (first) result->first_step = step, result->first_logit = i;
    const float difference = std::fabs(a.logits[i] - b.logits[i]);
    if (difference > result->largest_difference) result->largest_difference = difference;
  }
}

Comparison compare(kvd_llama::RecordReader& a, kvd_llama::RecordReader& b) {
  Comparison result;
  kvd_llama::Step step_a;
  kvd_llama::Step step_b;
  while (true) {
    const bool more_a = a.next(&step_a);
    const bool more_b = b.next(&step_b);
    result.same_length = more_a == more_b && !a.torn() && !b.torn();
    if (!more_a || !more_b) return result;
    compare_step(step_a, step_b, &result);
  }
}

void print(const Comparison& result) {
  std::printf(
      "{\"identical\":%s,\"steps\":%zu,\"distinct_tokens\":%zu,\"same_length\":%s,"
      "\"differing_steps\":%zu,\"largest_difference\":%g",
      result.identical() ? "true" : "false", result.steps, result.tokens.size(),
      result.same_length ? "true" : "false", result.differing_steps,
      static_cast<double>(result.largest_difference));
  if (result.differing_steps > 0) {
    std::printf(R"(,"first_difference":{"step":%zu,"logit":%zu})", result.first_step,
                result.first_logit);
  }
  std::printf("}\n");
}

int usage() {
  std::fputs(
      "usage: kvd-llama-compare A B [--distinct N]\n"
      "exit 0: identical, with more than N (100) distinct tokens; 1: different;\n"
      "2: not readable; 3: identical, but too few distinct tokens to mean anything\n",
      stderr);
  return kUnreadable;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t distinct = 100;
  if (argc == 5 && std::strcmp(argv[3], "--distinct") == 0) {
    const char* end = argv[4] + std::strlen(argv[4]);
    if (std::from_chars(argv[4], end, distinct).ptr != end) return usage();
  } else if (argc != 3) {
    return usage();
  }
  kvd_llama::RecordReader a(argv[1]);
  kvd_llama::RecordReader b(argv[2]);
  if (!a.ok() || !b.ok() || a.vocabulary() != b.vocabulary()) {
    std::fputs("kvd-llama-compare: not two records of one model\n", stderr);
    return kUnreadable;
  }
  const Comparison result = compare(a, b);
  print(result);
  if (!result.identical()) return kDifferent;
  return result.tokens.size() > distinct ? kIdentical : kVacuous;
}
