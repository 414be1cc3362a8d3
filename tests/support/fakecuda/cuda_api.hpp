#pragma once

// cuda.h with its functions exported: the tree compiles with hidden visibility.
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop
