// What libFuzzer calls: https://llvm.org/docs/LibFuzzer.html.
#include "tests/fuzz/fuzz.hpp"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

namespace kvd::fuzz {

std::string folder() {
  static const std::string kFolder = [] {
    const auto path = std::filesystem::temp_directory_path() /
                      ("kvd-fuzz-" + std::to_string(static_cast<long>(::getpid())));
    std::filesystem::create_directories(path);
    return path.string();
  }();
  return kFolder;
}

namespace {

/// Into the first folder that the command line names: libFuzzer reads it next.
void write_seeds(const std::filesystem::path& corpus) {
  int number = 0;
  for (const Data& seed : seeds()) {
    std::ofstream file(corpus / ("seed-" + std::to_string(++number)), std::ios::binary);
    file << text_of(seed);
  }
}

}  // namespace
}  // namespace kvd::fuzz

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    if (!std::filesystem::is_directory((*arguments)[i])) continue;
    kvd::fuzz::write_seeds((*arguments)[i]);
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvd::fuzz::run(std::as_bytes(std::span(data, size)));
  return 0;
}
