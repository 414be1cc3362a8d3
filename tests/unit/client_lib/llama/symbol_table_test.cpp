#include "client_lib/llama/plugin/symbol_table.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>

#include <filesystem>
#include <fstream>

extern "C" __attribute__((visibility("hidden"), noinline)) int kvd_hidden_function() { return 42; }

namespace kvd::llama {
namespace {

/// Where this program is mapped: its own entry comes first.
std::uintptr_t base_of_program() {
  std::uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        *static_cast<std::uintptr_t*>(out) = info->dlpi_addr;
        return 1;
      },
      &base);
  return base;
}

TEST(SymbolTable, FindsWhatDlsymDoesNot) {
  ASSERT_EQ(dlsym(RTLD_DEFAULT, "kvd_hidden_function"), nullptr);
  SymbolTable sut;
  sut.load("/proc/self/exe", base_of_program());
  const auto function = reinterpret_cast<int (*)()>(sut.find("kvd_hidden_function"));
  ASSERT_EQ(function, &kvd_hidden_function);
  EXPECT_EQ(function(), 42);
}

TEST(SymbolTable, KnowsNoOtherName) {
  SymbolTable sut;
  sut.load("/proc/self/exe", base_of_program());
  EXPECT_EQ(sut.find("kvd_hidden_functio"), nullptr);
  EXPECT_EQ(sut.find("kvd_hidden_function_"), nullptr);
  EXPECT_EQ(sut.find(""), nullptr);
}

TEST(SymbolTable, OfAFileThatIsMissingOrNoProgramIsEmpty) {
  for (const char* path : {"/nonexistent", "/etc/passwd", "/dev/null", "/proc/self"}) {
    SymbolTable sut;
    sut.load(path, 0);
    EXPECT_TRUE(sut.loaded());
    EXPECT_EQ(sut.find("main"), nullptr) << path;
  }
}

/// Wherever a file ends, reading it ends too.
TEST(SymbolTable, OfAFileThatIsCutOffIsEmpty) {
  std::ifstream program("/proc/self/exe", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(program), {}};
  std::string path = std::filesystem::temp_directory_path() / "kvd-symbols-XXXXXX";
  const int file = mkstemp(path.data());
  ASSERT_GE(file, 0);
  close(file);
  for (const std::size_t kept :
       {std::size_t{3}, std::size_t{63}, std::size_t{64}, bytes.size() / 2}) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(kept));
    SymbolTable sut;
    sut.load(path, 0);
    EXPECT_EQ(sut.find("kvd_hidden_function"), nullptr) << kept;
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace kvd::llama
