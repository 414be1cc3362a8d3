#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace kvd::kernels::cuda {

/// The fake driver with an environment of its own, for the scope of a test: started anew, and after
/// the test checked for broken rules and for what the test left behind.
/// Precondition at both ends: no thread uses the driver.
class FakeDriver {
 public:
  /// `environment`: "FAKECUDA_X=1 FAKECUDA_Y=2"; the fake driver's README tells what there is.
  explicit FakeDriver(const std::string& environment = "") {
    std::istringstream settings(environment);
    for (std::string setting; settings >> setting;) {
      const std::size_t equals = setting.find('=');
      names_.push_back(setting.substr(0, equals));
      ::setenv(names_.back().c_str(), setting.c_str() + equals + 1, 1);
    }
    reset();
  }
  ~FakeDriver() {
    EXPECT_EQ(find<std::size_t (*)(const char*)>("fakecuda_violations")(nullptr), 0u) << report();
    for (const std::string& name : names_) ::unsetenv(name.c_str());
    reset();
  }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;

  /// One line of JSON: rules broken, what is alive, bytes moved.
  [[nodiscard]] static std::string report() {
    const auto write = find<std::size_t (*)(char*, std::size_t)>("fakecuda_report");
    std::string text(write(nullptr, 0) + 1, '\0');
    write(text.data(), text.size());
    text.pop_back();
    return text;
  }
  static void expect_no_leaks() {
    EXPECT_NE(report().find(R"("leaks":{"handles":0,"mappings":0,"reservations":0,)"
                            R"("registrations":0,"streams":0,"events":0,"exported_fds":0})"),
              std::string::npos)
        << report();
  }

 private:
  template <class Function>
  static Function find(const char* name) {
    static void* const kLibrary = ::dlopen("libcuda.so.1", RTLD_NOW);
    void* address = kLibrary != nullptr ? ::dlsym(kLibrary, name) : nullptr;
    if (address == nullptr) {
      ADD_FAILURE()
          << "these tests need the fake driver first in LD_LIBRARY_PATH: run them by ctest";
      std::abort();
    }
    return reinterpret_cast<Function>(address);
  }
  // What the process has loaded already is initialised again, unless the test is about that.
  static void reset() {
    find<void (*)()>("fakecuda_reset")();
    find<CUresult (*)(unsigned)>("cuInit")(0);
  }

  std::vector<std::string> names_;
};

}  // namespace kvd::kernels::cuda
