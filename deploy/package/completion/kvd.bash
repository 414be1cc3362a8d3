# Completion for kvd's programs in bash (and in zsh after `autoload -U bashcompinit; bashcompinit`).
# All it knows it reads from the programs' own --help, so it knows what they know.

# The words that a help text lists under "Subcommands:" or "NAMEs:", or as "usage: NAME a|b|c".
_kvd_subcommands() {
  awk '
    /^usage: [a-z-]+ [a-z]+\|/ { gsub(/\|/, "\n", $3); print $3 }
    /^(Subcommands|NAMEs):/ { listed = 1; next }
    /^[^ ]/ { listed = 0 }
    listed && /^  [a-z]/ { print $1 }'
}

_kvd_options() { grep -oE '(^|[[:space:],[])--[a-z][a-z0-9._-]*' | grep -oE -- '--[a-z0-9._-]+[a-z0-9]' | sort -u; }

# The values a help text gives an option, as in "--snapshot TEXT:{rotate,place,admit}".
_kvd_values() { sed -nE "s/^ *([^ ]*,)?$1 [^ ]*\{([^}]*)\}.*/\2/p" | tr ',' '\n'; }

_kvd_complete() {
  local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local help word i values
  help=$("$program" --help 2>/dev/null) || return
  # Into the subcommands typed so far. Only where a help says "Subcommands:" has each its own --help.
  local -a typed=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    [[ $help == *Subcommands:* ]] || break
    grep -qxF -- "$word" <<<"$(_kvd_subcommands <<<"$help")" || continue
    typed+=("$word")
    help=$("$program" "${typed[@]}" --help 2>/dev/null) || return
  done

  if [[ $previous == -* ]]; then
    values=$(_kvd_values "$previous" <<<"$help")
    if [[ -n $values ]]; then
      mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
      return
    fi
    case $previous in
      --config | --model | --in | --out | --trace | --*[-._]file | --*table | --*[-._]dir)
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        compopt -o filenames 2>/dev/null || true
        return ;;
    esac
  fi
  if [[ "${typed[*]}" == "policy set" && $current != -* ]]; then
    # The keys of the running daemon; nothing where none answers.
    mapfile -t COMPREPLY < <(compgen -S = -W \
      "$("$program" policy 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$current")
    compopt -o nospace 2>/dev/null || true
    return
  fi
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_kvd_options <<<"$help")" -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -W "$(_kvd_subcommands <<<"$help")" -- "$current")
  fi
}

complete -F _kvd_complete kvd kvdctl kvd-plan kvd-sim kvd-pattern kvd-engine
