# Makes or reuses a virtual environment with ortkit in it. Sourced by demo, test and bench.
# usage: ensure_environment FOLDER EXTRAS [CONSTRAINTS]

step() { printf '\033[1m==>\033[0m %s\n' "$*"; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.11 python3.12 python3.13; do
    if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c \
      'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "ortkit needs Python 3.11 to 3.13; none was found (set PYTHON to name one)" >&2
  return 1
}

ensure_environment() {
  local folder=$1 extras=$2 python stamp
  python=$(find_python) || return 1
  if [ ! -x "$folder/bin/python" ]; then
    step "making a virtual environment in ${folder#"$PWD"/}"
    if ! "$python" -m venv "$folder"; then
      echo "could not make a virtual environment; on Debian: apt-get install python3-venv" >&2
      return 1
    fi
  fi
  # What decides what is installed; a second run with the same answers installs nothing.
  stamp=$(cat pyproject.toml constraints.txt custom_ops/CMakeLists.txt custom_ops/native/* \
    <(echo "$extras $PWD") | sha256sum | cut -d' ' -f1)
  if [ "$(cat "$folder/.ortkit-stamp" 2>/dev/null)" != "$stamp" ]; then
    step "installing ortkit[$extras] (the first time: a minute or two)"
    "$folder/bin/python" -m pip install --disable-pip-version-check --progress-bar on -q \
      -c constraints.txt -e ".[$extras]" || return 1
    echo "$stamp" > "$folder/.ortkit-stamp"
  else
    step "reusing ${folder#"$PWD"/}"
  fi
}
