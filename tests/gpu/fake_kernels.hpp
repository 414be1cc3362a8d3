#pragma once

namespace kvd::gpu {

/// Tells a fake driver what the kernels of lab_kernels.cu and the slot kernels do; on a real one
/// nothing happens.
void register_fake_kernels();

}  // namespace kvd::gpu
