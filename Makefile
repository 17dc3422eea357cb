# How to work on deferlock. `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# The directories of all modules, the library's own first.
MODULES := $(sort $(patsubst %/,%,$(dir $(shell find . -name go.mod -not -path '*/.*/*'))))

# How long each fuzz target runs in `make fuzz`.
FUZZTIME ?= 10s

LINTER := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: ## vet and test the library and the examples under the race detector; get a redis-server and PostgreSQL if there is none
	@scripts/test $(filter-out ./integration,$(MODULES))

.PHONY: integration
integration: redis postgres ## every fault on real servers with real processes
	cd integration && go vet ./... && go test -race -p 1 -parallel 4 ./...

# The images of Redis for `make containers`. One that is not there is pulled.
REDIS_IMAGES ?=

.PHONY: containers
containers: ## what is promised, and every fault, in containers (REDIS_IMAGES="redis:6.2 valkey/valkey:8")
	@scripts/containers $(REDIS_IMAGES)

# How many writes wait in `make backlog`.
WRITES ?= 1000000

.PHONY: backlog
backlog: redis ## what a backlog of a million writes costs, in time, commands and memory (WRITES=1000000)
	cd integration && go test -count=1 -timeout 0 -v ./backlog -args -writes $(WRITES)

.PHONY: bench
bench: redis ## deferlock beside its peers: report and plots in bench/results (ARGS=-quick, ARGS=-h)
	cd bench && go run . $(ARGS)

.PHONY: tune
tune: ## batch and lookback for a load like yours: a table, a plot and a recommendation (ARGS=-h)
	cd examples/pgwriter && go run . -tune $(ARGS)

.PHONY: race
race: redis postgres ## the library's tests five times over under the race detector, in random order
	go test -race -count=5 -shuffle=on ./...

.PHONY: redis
redis: ## make sure that there is a redis-server
	@scripts/redis

.PHONY: postgres
postgres: ## make sure that there are the programs of PostgreSQL, or a DATABASE_URL
	@scripts/postgres

.PHONY: lint
lint: ## gofmt, go vet and golangci-lint (which it installs if it is missing)
	@scripts/lint '$(LINTER)' $(MODULES)

.PHONY: fuzz
fuzz: redis ## every fuzz target for a short while (FUZZTIME=10s)
	@scripts/fuzz '$(FUZZTIME)' $(MODULES)

.PHONY: demo
demo: ## the example: writes to Postgres, some of them deferred, some processes killed (ARGS=-naive, ARGS=-h)
	cd examples/pgwriter && go run . $(ARGS)

# How long `make torture` goes on, and which scenario it is (0: a new one).
TIME ?= 5m
SEED ?= 0

.PHONY: torture
torture: redis postgres ## faults of all kinds at random, then one table (TIME=5m SEED=0)
	cd integration && go test -count=1 -timeout 0 -v ./torture -args -time $(TIME) -seed $(SEED)
