#!/usr/bin/env bash
# Everything that decides whether mqb works, on a new Debian machine as well as
# on this one. Real servers are installed and built by the tests' harness where
# they are missing, cached outside the tree ($MQB_TEST_CACHE).
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "make test: $*" >&2; exit 1; }
command -v go >/dev/null || fail "Go is missing; see go.mod for the version"
command -v gcc >/dev/null || fail "gcc is missing (the race detector needs it): apt-get install gcc libc6-dev"
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  fail "needs root on Debian, since it installs and starts PostgreSQL and Kafka; use 'make check' for the tests that need no server"
fi
missing=()
command -v java >/dev/null || missing+=(default-jre-headless)
command -v mvn >/dev/null || missing+=(maven)
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
for tool in python3 zstd lz4; do
  command -v $tool >/dev/null || missing+=("$tool")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing ${missing[*]}"
  # A new machine may be busy with its own updates.
  wait=(-o DPkg::Lock::Timeout=300)
  apt-get "${wait[@]}" update -qq
  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get "${wait[@]}" install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# Root builds here what may belong to somebody else, and git refuses to look at that.
export GOFLAGS="${GOFLAGS:-} -buildvcs=false"

report=$(mktemp -d)
trap 'rm -rf "$report"' EXIT
status=0
run() { # name, then arguments of go test
  local name=$1; shift
  echo; echo "== $name"
  go run gotest.tools/gotestsum@v1.13.0 --format pkgname --jsonfile "$report/$name.json" -- "$@" || status=1
}

echo "== lint"
make -s lint
# Where goroutines meet: with the race detector. The stores on real servers spend
# their time in the servers and run without it.
race=(./hook/... ./message/... ./lease ./lease/kv ./lease/leasetest ./lease/memory ./lease/raft ./checkpoint ./checkpoint/memory ./checkpoint/coordinator ./actors/... ./cluster/... ./middleware/...)
run race -race -timeout 25m "${race[@]}"
# What the race detector sees in a library, and not in what is tested.
run norace -run '^TestAFullRestartAtNewAddressesKeepsEverything$' ./lease/raft
# Whole clusters, one package at a time: they measure time against each other.
system=(./cmd/... ./test/...)
plain=$(comm -23 <(go list ./... | sort) <(go list "${race[@]}" "${system[@]}" | sort))
# shellcheck disable=SC2086 # a list of packages
run plain -timeout 30m $plain
run system -p 1 -timeout 40m "${system[@]}"
echo; echo "== schema"
go -C test/deploy/schema test ./... || status=1

if grep -l '"Action":"skip".*"Test"' "$report"/*.json >/dev/null 2>&1; then
  grep -h '"Action":"skip".*"Test"' "$report"/*.json
  fail "tests were skipped; nothing may be"
fi
exit $status
