#include "tests/gpu/machine_facts.hpp"

#include <sys/utsname.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace kvd::gpu {
namespace {

namespace fs = std::filesystem;

constexpr int kCopies = 900;  // of 64 MiB: about a second, and fewer than a queue holds

/// The lines that a command prints, joined.
std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  std::array<char, 256> line{};
  while (pipe != nullptr && std::fgets(line.data(), line.size(), pipe) != nullptr) {
    text += (text.empty() ? "" : "; ") + std::string(line.data());
    while (!text.empty() && text.back() == '\n') text.pop_back();
  }
  if (pipe != nullptr) ::pclose(pipe);
  return text;
}

std::string names_in(const char* folder) {
  std::string text;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    text += (text.empty() ? "" : " ") + entry.path().filename().string();
  }
  return text.empty() ? "none" : text;
}

std::string huge_pages() {
  std::string text;
  std::error_code none;
  for (const auto& size : fs::directory_iterator("/sys/kernel/mm/hugepages", none)) {
    std::ifstream free(size.path() / "free_hugepages");
    std::string count;
    if (free >> count) text += size.path().filename().string() + ": " + count + " free; ";
  }
  return text.empty() ? "none" : text;
}

std::string missing_entries(const cuda::Driver& driver) {
  std::string text;
#define KVD_GPU_MISSING(member, entry, version, required) \
  if (driver.member == nullptr) text += " " #entry;
  KVD_CUDA_ENTRIES(KVD_GPU_MISSING)
#undef KVD_GPU_MISSING
  return text.empty() ? "none" : text.substr(1);
}

/// The link's generation and width while copies keep it busy: idle, it saves power.
Result<std::string> busy_link(const Gpu& gpu) {
  KVD_ASSIGN_OR_RETURN(const PinnedMemory host, PinnedMemory::make(gpu, kMiB * 64));
  KVD_ASSIGN_OR_RETURN(const GpuSlab device, GpuSlab::make(gpu, kMiB * 64));
  for (int i = 0; i < kCopies; ++i) {
    KVD_TRY(gpu.check(gpu.driver().memcpy_htod_async(device.address(), host.data(),
                                                     host.size().size(), gpu.stream().get()),
                      "keeping the link busy"));
  }
  std::string link = ask_smi("pcie.link.gen.current,pcie.link.width.current");
  KVD_TRY(gpu.finish());
  return link;
}

}  // namespace

std::string ask_smi(const std::string& query) {
  const std::string text = output_of("nvidia-smi --query-gpu=" + query + " --format=csv,noheader");
  return text.empty() ? "unknown (no nvidia-smi)" : text;
}

Status machine_facts(const Lab& lab, const Gpu& gpu) {
  utsname kernel{};
  ::uname(&kernel);
  lab.out.fact("kernel", std::string(kernel.release) + " " + kernel.machine);
  lab.out.fact("IOMMU", names_in("/sys/class/iommu"));
  lab.out.fact("huge pages", huge_pages());
  lab.out.fact("entry points the driver lacks", missing_entries(gpu.driver()));
  lab.out.fact("MPS", fs::exists("/tmp/nvidia-mps") ? "its folder is there" : "no folder of it");
  lab.out.fact("persistence mode", ask_smi("persistence_mode"));
  lab.out.fact("compute mode", ask_smi("compute_mode"));
  const std::string others =
      output_of("nvidia-smi --query-compute-apps=pid,name --format=csv,noheader");
  lab.out.fact("processes on the GPU", others.empty() ? "none that nvidia-smi sees" : others);
  if (lab.quick) return {};
  KVD_ASSIGN_OR_RETURN(const std::string link, busy_link(gpu));
  lab.out.fact("PCIe generation, width while busy", link);
  return {};
}

}  // namespace kvd::gpu
