# make help lists the targets.

ROOT ?=
HTTP ?= 127.0.0.1:8080
OPS  ?= 127.0.0.1:9090
ARGS ?=
FUZZTIME ?= 10s
SESSIONS ?= 10000
PUSHES   ?= 400
SOAK     ?= 10m
SEED     ?= 1
CLIENTS  ?= 30
DURATION ?= 10s
CLIENTDIR ?= bin/clients
SCREENSHOTS ?= bin/screenshots
GITEADIR ?= bin/gitea
URL      ?= http://$(HTTP)/demo

REVISION := $(shell git rev-parse --short=12 HEAD 2>/dev/null)
BINARY   := bin/packhorse
# The version is in internal/server/cli. The linker adds the commit, since Go's own stamping fails in checkouts of other users.
BUILD    := go build -buildvcs=false -trimpath -ldflags '-s -w -X main.revision=$(REVISION)'

.DEFAULT_GOAL := help
.PHONY: help build serve serve-now serve-search test test-short test-all test-long test-stories zoekt-webserver clients clients-doc store-servers test-minio test-browser test-forges test-site check vet vet-darwin size proto helm fuzz soak-protocol soak-push docs site site-serve release test-release bench bench-refs bench-neighbour bench-spawn bench-sched clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo '  make serve ROOT=/srv/git HTTP=127.0.0.1:8080 OPS=127.0.0.1:9090 ARGS="--log-level debug"'

build: ## Build packhorse, packhorse-search and packhorse-bench in bin, static binaries
	CGO_ENABLED=0 $(BUILD) -o bin/ ./cmd/...

# The server comes first. It starts code search when that is compiled, which must be from the same source.
serve: ## Build, and serve ROOT; without ROOT a demo that leaves nothing
	@[ -x $(BINARY) ] || echo 'Downloading modules (73 MB) and compiling the server: about 80 seconds on two idle CPUs the first time.'
	@CGO_ENABLED=0 $(BUILD) -o bin/ ./cmd/packhorse
	@[ -x bin/packhorse-search ] || echo 'Downloading (150 MB) and compiling code search in the background. The server starts it then.'
	@rm -f bin/packhorse-search
	@$(MAKE) --no-print-directory -j 2 serve-now serve-search

serve-now:
	@exec ./$(BINARY) $(if $(ROOT),serve --root "$(ROOT)",demo) --http "$(HTTP)" --ops "$(OPS)" $(ARGS)

serve-search:
	@CGO_ENABLED=0 nice $(BUILD) -o bin/ ./cmd/packhorse-search 2>bin/search.log || cat bin/search.log >&2

# go vet runs in make check.
RACE     = $(shell .ci/packages --have-cgo && echo -race)
# One package more than CPUs: tests wait for a part of their time.
PACKAGES = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# Compilers and linkers need less CPU time with fewer garbage collections. Tests run with the usual number. With -exec, go
# does not keep results, which a fresh clone does not need.
FRUGAL   = $(if $(CI),GOGC=400)
EXEC     = $(if $(CI),-exec 'env -u GOGC')
# By default a program with the race detector sleeps for a second when it ends: a minute for all packages.
GOTEST   = $(FRUGAL) CGO_ENABLED=$(if $(RACE),1,0) GORACE=atexit_sleep_ms=0 go test -vet=off $(EXEC) -p $(PACKAGES) $(RACE)
PLAINTEST = $(FRUGAL) CGO_ENABLED=0 go test -vet=off $(EXEC) -p $(PACKAGES)

# Packages of internal whose goroutines share most state. make test runs only their tests with the race detector, which
# makes compiling and testing several times slower. make test-long uses it for all packages.
RACED    = gateway|gateway/app|gateway/auth|gateway/resolve|gateway/router|git/process|git/refs|mirror/origin|node/control|node/gc|node/packcache|node/places|node/storage|node/watch|node/webhook|schedule/admit|schedule/balance|schedule/inflight|schedule/retry|store|store/bucket|store/hydrate|store/replog|transport/bulk|transport/clients|transport/httpguard|transport/sidechannel|transport/unaryhttp

# With STORIES=later the stories are left out: .ci/run runs them afterwards, with STORIES=short.
test: ## Install what the tests need, check, and run the tests that a change needs
	@[ -d bin/tools ] || echo 'The first run downloads modules (334 MB) and compiles all packages. Its checks alone take 400 seconds of CPU time.'
	@.ci/packages
	@$(MAKE) --no-print-directory check
	@$(MAKE) --no-print-directory test-short

test-short:
	@[ -n '$(RACE)' ] || echo '*** No C compiler: the race detector is NOT run. Install gcc and libc6-dev to have it. ***'
	$(GOTEST) -short -timeout 15m $$(go list ./internal/... | grep -E '/internal/($(RACED))$$')
	$(PLAINTEST) -short -timeout 15m $$(go list ./... | grep -vE '/(internal/($(RACED))$(if $(filter later,$(STORIES)),|e2e))$$')

test-all: test vet-darwin test-long test-browser test-forges test-site test-minio test-release clients ## Run all tests: also long ones, the browser, other git clients, and soaks
	.ci/proto verify
	.ci/helm verify
	$(MAKE) soak-protocol SESSIONS=2000
	$(MAKE) soak-push SOAK=1m

test-long: ## Run the tests that make test leaves out: statistics, simulations, and stories in all shapes
	$(GOTEST) -timeout 30m ./...

test-stories: ## Run all stories and the matrix of shapes with a server without the race detector
	$(PLAINTEST) -timeout 15m $(if $(filter short,$(STORIES)),-short) -parallel $$(($(PACKAGES) + 1)) ./e2e

zoekt-webserver: ## Build bin/zoekt-webserver, to compare searches with
	CGO_ENABLED=0 go build -C bench/zoekt -buildvcs=false -o $(abspath bin)/ github.com/sourcegraph/zoekt/cmd/zoekt-webserver

# Tests without the race detector have CGO_ENABLED=0, like the programs, so that they share the compiled packages.
test-browser: ## Check each kind of page in a Chromium, with screenshots in SCREENSHOTS (bin/screenshots)
	.ci/clients $(CLIENTDIR) page-checks
	CGO_ENABLED=0 PACKHORSE_TEST_BROWSER=$(abspath $(CLIENTDIR))/page-checks PACKHORSE_SCREENSHOTS=$(abspath $(SCREENSHOTS)) go test -count=1 -timeout 10m ./e2e -run '^TestBrowser'

clients: ## Install other git clients below CLIENTDIR (bin/clients), and run the matrix with all available ones
	@.ci/clients $(CLIENTDIR)
	CGO_ENABLED=0 PACKHORSE_CLIENTS=$(abspath $(CLIENTDIR)) go test -count=1 -timeout 15m ./e2e -run '^TestClients'

clients-doc: ## Regenerate docs/reference/clients.md from a run with all clients
	@.ci/clients $(CLIENTDIR)
	CGO_ENABLED=0 PACKHORSE_CLIENTS=$(abspath $(CLIENTDIR)) go test -count=1 -timeout 15m ./e2e -run '^TestClients$$' -update

store-servers: ## Install versitygw and toxiproxy in bin/store, for tests of object storage
	@.ci/store bin/store

test-minio: ## Install MinIO in bin/store, and test object storage with it
	@.ci/store bin/store minio
	CGO_ENABLED=0 go test -vet=off -count=1 ./internal/store/bucket -run '^TestMinIO$$'

test-forges: ## Build a Gitea below GITEADIR (bin/gitea), and run mirrors, a sidecar and a move of it
	@.ci/packages jq rsync
	@.ci/gitea $(GITEADIR)
	PACKHORSE_TEST_GITEA=$(abspath $(GITEADIR)) CGO_ENABLED=0 go test -vet=off -count=1 -timeout 10m ./e2e -run 'OfGitea$$'

test-site: ## Check the documentation site: links, HTML, search, and pages in a Chromium
	.ci/clients $(CLIENTDIR) page-checks
	.ci/site build >/dev/null
	CGO_ENABLED=0 PACKHORSE_TEST_SITE=$(abspath bin/tools) PACKHORSE_TEST_BROWSER=$(abspath $(CLIENTDIR))/page-checks PACKHORSE_SCREENSHOTS=$(abspath $(SCREENSHOTS)) go test -count=1 -timeout 10m ./e2e -run '^TestSite$$'

check: vet ## Check formatting, go vet, types for macOS, the API's definitions, the language, and commit subjects
	@unformatted=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go' 2>/dev/null || find . -name '*.go')); \
	if [ -n "$$unformatted" ]; then echo "Not formatted; run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	@.ci/proto check
	@.ci/helm check
	@echo 'Checking the language of pages, comments and messages'
	@.ci/prose
	@.ci/commits
	@CGO_ENABLED=0 go run ./.ci/size -check .ci/size/budget

size: ## Count lines of code, packages, configuration keys, metrics and words; make check compares them with .ci/size/budget
	@CGO_ENABLED=0 go run ./.ci/size

# vet compiles packages as most tests do, so that each is compiled once.
vet:
	GOGC=400 CGO_ENABLED=0 go vet ./...
	GOGC=400 CGO_ENABLED=0 go run -buildvcs=false ./.ci/typecheck -goos darwin ./...

vet-darwin:
	CGO_ENABLED=0 GOOS=darwin go vet ./...

proto: ## Regenerate Go code from proto/
	@.ci/proto write

helm: ## Render the chart in deploy/helm with the values in deploy/helm/tests
	@.ci/helm write

fuzz: ## Run each fuzz target for FUZZTIME (10s)
	@set -e; for package in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz'); do \
			echo "$$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

soak-protocol: ## Compare SESSIONS random sessions with git upload-pack, from SEED on
	PACKHORSE_SESSIONS=$(SESSIONS) PACKHORSE_SEED=$(SEED) go test -count=1 -timeout 12h ./internal/node/uploadpack -run '^TestDifferential$$'

soak-push: ## Check pushes that race, with kills in between, for an order that explains them: PUSHES of one ref, then for SOAK (10m) from SEED on
	PACKHORSE_PUSHES=$(PUSHES) go test -count=1 -timeout 12h ./internal/node/receivepack -run '^TestRegister$$'
	PACKHORSE_PUSH_TIME=$(SOAK) PACKHORSE_SEED=$(SEED) go test -count=1 -timeout 12h ./e2e -run '^TestRegister$$' -v

docs: ## Regenerate the generated pages (docs/reference/config.md, metrics.md, commands.md) and plots
	go test ./internal/server/config ./internal/server/roles ./internal/bench ./e2e -run '^TestDocs' -update

site: ## Build the documentation site in dist/site, of VERSION (dev)
	@.ci/site build "$$VERSION"

site-serve: ## Serve the documentation site on PORT (a free one), and build again what changes
	@.ci/site serve "$$PORT"

release: ## Build the release VERSION from its tag into dist (docs/how-to/release.md)
	@.ci/release "$$VERSION"

test-release: ## Build a release twice in clones, compare, and test its files
	@.ci/test-release

bench: build ## Clone URL with CLIENTS for DURATION from a running server
	./bin/packhorse-bench fetch $(URL) --clients $(CLIENTS) --duration $(DURATION)

bench-refs: build ## Look up a ref of URL with CLIENTS for DURATION
	./bin/packhorse-bench refs $(URL) --prefix refs/heads/main --clients $(CLIENTS) --duration $(DURATION)

bench-neighbour: build ## Measure a small request while CLIENTS clone URL
	./bin/packhorse-bench neighbour $(URL) --clients $(CLIENTS) --duration $(DURATION)

# A benchmark writes its report to the file in PACKHORSE_REPORT.
bench-spawn: ## Measure the start of a process by the heap of its parent, and print JSON; HEAPS=0,1,8 are GiB
	@mkdir -p bin
	@PACKHORSE_HEAPS=$(HEAPS) PACKHORSE_REPORT=$(abspath bin/spawn.json) CGO_ENABLED=0 go test -vet=off -timeout 1h -run '^$$' -bench '^BenchmarkSpawn$$' -benchtime 1x ./internal/git/process >&2
	@cat bin/spawn.json

bench-sched: ## Simulate the choice of a worker for each request, and print JSON
	@mkdir -p bin
	@PACKHORSE_REPORT=$(abspath bin/sched.json) CGO_ENABLED=0 go test -vet=off -timeout 1h -run '^$$' -bench '^BenchmarkSchedule$$' -benchtime 1x ./internal/schedule/balance >&2
	@cat bin/sched.json

clean: ## Remove what was built
	rm -rf bin dist
