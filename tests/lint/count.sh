#!/bin/sh
# Counts the lines of C++, CUDA, C, Python, JavaScript, shell and CMake that git keeps, by what they are for.
# None of these files is generated. kvd-sim is in the packages, so it is product. The lint test prints the table.
set -eu
cd "$(dirname "$0")/../.."
git ls-files -- '*.cpp' '*.hpp' '*.cu' '*.c' '*.h' '*.py' '*.js' '*.sh' '*.cmake' '*CMakeLists.txt' |
  while read -r file; do [ ! -f "$file" ] || echo "$file"; done | # one may be removed and not yet committed
  xargs wc -l |
  awk '$2 == "total" { next }
    {
      part = "product"
      if ($2 ~ /^tests\//) part = "tests"
      if ($2 ~ /^tests\/(gpu|lab)\//) part = "lab"
      lines[part] += $1
      files[part]++
    }
    END {
      count = split("product tests lab", parts)
      for (i = 1; i <= count; i++) {
        printf "%-8s %7d lines in %4d files\n", parts[i], lines[parts[i]], files[parts[i]]
        all += lines[parts[i]]
      }
      printf "%-8s %7d lines\n", "all", all
    }'
