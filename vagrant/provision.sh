#!/bin/sh
# Provisions a machine of the pair: installs a compiler and Rust, and runs `cargo xtask setup` for all other tools.
# Usage: provision.sh [FOLDER], the folder of the checkout [default: /viaduct].
set -eu
cd "${1:-/viaduct}"

has() {
    command -v "$1" > /dev/null 2>&1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

export PATH="$HOME/.cargo/bin:$PATH"
if ! has cc || ! has curl; then
    as_root apt-get update
    as_root apt-get install --yes --no-install-recommends build-essential ca-certificates curl
fi
if ! has cargo; then
    curl --proto '=https' --tlsv1.2 --silent --show-error --fail https://sh.rustup.rs | sh -s -- -y --profile minimal
fi
cargo xtask setup
