// What most tests read: deploy/cmake/KvdTest.cmake compiles it once for all test programs. A test
// still includes what it uses.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "deploy/cmake/standard_headers.hpp"
