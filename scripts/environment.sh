# Makes or reuses a virtual environment with ortkit in it. Sourced by demo, test and bench.
# usage: ensure_environment FOLDER EXTRAS    extras once installed there stay

step() {
  if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    printf '\033[1m==> %s\033[0m\n' "$*"
  else
    printf '==> %s\n' "$*"
  fi
}

fail() {
  printf 'error: %s\n' "$*" >&2
  return 1
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.11 python3.12 python3.13; do
    if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c \
      'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "ortkit needs Python 3.11 to 3.13 and none was found; PYTHON=/path/to/python names one"
}

# Shows what pip does: one line that changes on a terminal, nothing elsewhere.
show_progress() {
  local line columns
  columns=$(tput cols 2>/dev/null || echo 80)
  while IFS= read -r line; do
    [ -t 1 ] || continue
    case $line in
      *Collecting* | *Downloading* | *Building* | *Preparing* | *Installing*)
        printf '\r\033[K    %s' "$(echo "$line" | cut -c "1-$((columns - 5))")"
        ;;
    esac
  done
  [ ! -t 1 ] || printf '\r\033[K'
}

install_into() {
  local folder=$1
  local log=$folder/install.log
  shift
  if ! "$folder/bin/python" -m pip install --disable-pip-version-check --progress-bar off \
    "$@" 2>&1 | tee "$log" | show_progress; then
    grep -v '^WARNING' "$log" | tail -n 15 >&2
    fail "installing failed; everything that was said is in $log"
  fi
}

make_environment() {
  local folder=$1 python
  if "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    return
  fi
  python=$(find_python) || return 1
  step "making a virtual environment in ${folder#"$PWD"/} ($("$python" --version))"
  rm -rf "$folder"
  if ! "$python" -m venv "$folder"; then
    rm -rf "$folder"
    fail "no virtual environment could be made; on Debian: apt-get install python3-venv"
  fi
}

check_compiler() {
  local candidate
  for candidate in ${CXX:-} c++ g++ clang++; do
    ! command -v "$candidate" >/dev/null 2>&1 || return 0
  done
  fail "ortkit's native part needs a C++ compiler; on Debian: apt-get install g++"
}

ensure_environment() {
  local folder=$1 extras=$2 stamp have all started=$SECONDS
  make_environment "$folder" || return 1
  # What decides what is installed, and the extras that are; a second run installs nothing.
  stamp=$({
    cat pyproject.toml constraints.txt custom_ops/CMakeLists.txt
    find custom_ops/native -type f -print0 | LC_ALL=C sort -z | xargs -0 cat
    echo "$PWD"
  } | sha256sum | cut -d' ' -f1)
  have=$(sed -n "s/^$stamp //p" "$folder/ortkit-stamp" 2>/dev/null || true)
  all=$(echo "$have,$extras" | tr , '\n' | grep . | sort -u | paste -sd, -)
  if [ "$have" = "$all" ]; then
    step "reusing ${folder#"$PWD"/} with ortkit[$all]"
    return
  fi
  check_compiler || return 1
  step "installing ortkit[$all] into ${folder#"$PWD"/} (the first time: a minute or two)"
  install_into "$folder" -c constraints.txt -e ".[$all]" || return 1
  echo "$stamp $all" > "$folder/ortkit-stamp"
  step "installed in $((SECONDS - started)) s"
}
