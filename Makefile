# mqb. The targets that people use:
#   make demo    three nodes, a kill and a freeze, and a checker that counts every row
#   make check   build, vet, staticcheck and the short tests: the loop while working
#   make test    everything, with real servers; what CI runs
#   make bench   throughput, failover and fence cost, with their spread
#   make build   bin/mqbd and bin/mqbctl
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/mqbridge/mqb/cluster.Version=$(VERSION)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: build check test bench demo lint clean

build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/mqbd ./cmd/mqbctl

check: build lint
	$(GO) test -short $$($(GO) list ./... | grep -v /test/)

lint:
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt needed:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags mqbhooks ./...
	$(GO) vet -tags mqbhooks,mqbnofence ./checkpoint/... ./connectors/...
	$(GO) run $(STATICCHECK) ./...

test:
	./test/run.sh

bench:
	CGO_ENABLED=0 $(GO) run ./test/bench $(BENCH)

demo: build
	CGO_ENABLED=0 $(GO) run ./test/demo -bin bin

clean:
	rm -rf bin
