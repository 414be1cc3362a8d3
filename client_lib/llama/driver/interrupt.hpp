#pragma once

namespace kvd_llama {

/// Turns signals into questions: the driver asks between steps, and no handler ever runs. Call
/// block_signals() before any thread exists, so that all inherit the mask.
void block_signals();
/// SIGTERM or SIGINT has arrived (it stays pending, so the answer stays true).
bool stop_requested();
/// Waits for SIGUSR1; false: told to stop instead.
bool wait_for_resume();

}  // namespace kvd_llama
