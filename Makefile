# mqb. The targets that people use:
#   make demo    three nodes, a kill and a freeze, and a checker that counts every row
#   make check   build, vet, staticcheck and the short tests: the loop while working
#   make test    everything, with real servers; what CI runs
#   make scenarios  each scenario of docs/scenarios.md by name, with its result
#   make mutants    each guard taken out, one at a time, and the test that turns red
#   make soak    the cluster in simulation: new seeds for SECONDS=600
#   make bench   throughput, failover and fence cost, with their spread; BENCH=-peers beside other programs
#   make build   bin/mqbd and bin/mqbctl
#   make image   the container image $(IMAGE); make up, make down: deploy/compose.yml
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X github.com/mqbridge/mqb/cluster.Version=$(VERSION)
DOCKER ?= docker
# The plugin of the docker command, or the program of its own that Debian has.
COMPOSE ?= $(shell $(DOCKER) compose version >/dev/null 2>&1 && echo $(DOCKER) compose || echo docker-compose)
IMAGE ?= mqb
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Packages whose tests start servers; make check leaves them to make test.
NEED_SERVERS := /test/|/connectors/(kafka|sqlx)|/dial/|/checkpoint/(postgres|mysql|s3|mongodb)|/lease/etcd|/cmd/mqbd

.PHONY: build check test scenarios mutants soak bench demo lint image up down clean

build:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/mqbd ./cmd/mqbctl

check: build lint
	$(GO) test -short $$($(GO) list ./... | grep -vE '$(NEED_SERVERS)')

lint:
	@test -z "$$(gofmt -l .)" || { echo "gofmt needed:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags mqbhooks ./...
	$(GO) vet -tags mqbhooks,mqbnofence ./checkpoint/... ./connectors/...
	$(GO) run $(STATICCHECK) ./...

test:
	./test/run.sh

scenarios:
	$(GO) run ./test/scenarios/run $(SCENARIOS)

mutants:
	$(GO) run ./test/mutants $(MUTANTS)

SECONDS ?= 600
soak:
	MQB_SIM_SECONDS=$(SECONDS) $(GO) test -count 1 -timeout 0 -run TestSeeds -v ./test/simulation

bench:
	CGO_ENABLED=0 $(GO) run ./test/bench $(BENCH)

demo: build
	CGO_ENABLED=0 $(GO) run ./test/demo -bin bin

# The image has no system that could be built in: its programs come from here.
image: build
	rm -rf bin/image
	mkdir -p bin/image/volumes/data bin/image/volumes/files/in
	cp bin/mqbd bin/mqbctl bin/image/
	$(DOCKER) build -f deploy/Dockerfile -t $(IMAGE) bin/image

up: image
	MQB_IMAGE=$(IMAGE) $(COMPOSE) -f deploy/compose.yml up -d

# Volumes stay: add -v to the command to remove them.
down:
	$(COMPOSE) -f deploy/compose.yml down

clean:
	rm -rf bin
