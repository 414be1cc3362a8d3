#!/bin/sh
# exports_test.sh LIBRARY HEADER: the library's dynamic symbols are the functions of the C header, the
# C++ classes Client and Caches, and the names of error codes; nothing is missing and nothing else is to be seen.
set -eu
library=$1
header=$2

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

grep -v '^#' "$header" | tr '\n' ' ' | grep -o 'KVD_API [^;(]*(' | sed 's/.*[ *]\(kvd_[a-z0-9_]*\)($/\1/' |
  sort >"$folder/declared"
nm -D --defined-only -C "$library" | cut -d' ' -f3- | sed 's/@@.*//' | sort >"$folder/all"
grep -E '^kvd_[a-z0-9_]*$' "$folder/all" >"$folder/exported"

status=0
[ -s "$folder/declared" ] || { echo "no function found in $header"; status=1; }
diff -u "$folder/declared" "$folder/exported" || status=1
if grep -vE '^kvd_[a-z0-9_]*$|^kvd_client::(Caches::|Client::|name\()|^KVD_CLIENT_0$' "$folder/all"; then
  echo "these should stay inside the library"
  status=1
fi
exit "$status"
