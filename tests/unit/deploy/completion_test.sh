#!/bin/bash
# usage: completion_test.sh COMPLETION_FILE BIN_FOLDER
# What the shell offers for a command line typed so far, its last word included.
set -euo pipefail
# shellcheck source=/dev/null
source "$1"
PATH="$2:$PATH"

failures=0

# offers "TYPED WORDS" "EXPECTED WORDS": all of these have to be among the words that are offered.
offers() {
  read -ra COMP_WORDS <<<"$1"
  [[ $1 != *' ' ]] || COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _kvd_complete
  for word in $2; do
    # There is no pipe here: grep ends at the first match, and a program that still writes would then fail.
    grep -qxF -- "$word" <<<"$(printf '%s\n' "${COMPREPLY[@]:-}")" && continue
    echo "completion: \"$1\" does not offer $word, but: ${COMPREPLY[*]:-nothing}" >&2
    failures=1
  done
}

offers "kvdctl " "status pools doctor policy"
offers "kvdctl doc" "doctor"
offers "kvdctl --" "--url --json --token-file"
offers "kvdctl requests --" "--snapshot"
offers "kvdctl requests --snapshot " "rotate place admit"
offers "kvdctl requests --snapshot r" "rotate"
offers "kvdctl cache " "clear"
offers "kvdctl --json policy " "set"
offers "kvdctl doctor --" "--runtime-dir"
offers "kvd --pool." "--pool.hbm --pool.dram --pool.slab"
offers "kvd --print-" "--print-config --print-unit"
offers "kvd-plan " "latency rotate load"
offers "kvd-pattern --req" "--requests"
cd "$(dirname "$1")"
offers "kvd --config kvd." "kvd.bash"
exit "$failures"
