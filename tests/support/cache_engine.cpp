/// kvd-cache-engine ENDPOINT SEED: attaches to kvd and runs prompts until kvd ends, some of them
/// repeatedly. It checks every byte that is found. Exit 9: one was wrong.
#include <cstdio>
#include <cstdlib>
#include <random>

#include "tests/support/store_node.hpp"

int main(int argc, char** argv) {
  using kvd::bench::StoreNode;
  if (argc != 3) return 2;
  StoreNode node(argv[1]);
  std::mt19937_64 random(std::strtoull(argv[2], nullptr, 10));
  for (;;) {
    const auto prompt = static_cast<std::uint32_t>(random() % 40);
    const std::uint64_t tokens = (1 + random() % 60) * StoreNode::kBlockTokens + 1;
    std::printf("found %llu\n", static_cast<unsigned long long>(node.run(prompt, tokens)));
    std::fflush(stdout);
  }
}
