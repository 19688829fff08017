// Package internal_test checks the rules of the project: the imports of each package, the place of dependencies,
// package comments, and the links in documents.
package internal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/packhorse-git/packhorse/"

// allowedImports lists the imports of each package. "a < b" means that b may import a and everything that a may import.
// Names are below internal/, except for cmd. A change of the table also changes ARCHITECTURE.md, in the same commit.
const allowedImports = `
	NONE < fault, git/pktline, bulk, inflight, git/reaper, git/cgroup, observe/sli, observe/tracing, observe/watchdog, proto/packhorse/v1, proto/packhorse/health/v1, search/schema, proto/workerv1, bench/page, bench/chart, bench/loadgen, bench/link, cli, estimate;
	proto/workerv1 < search/ipc;
	git/cgroup < observe/proctree;
	proto/packhorse/v1 < proto/packhorse/v1/packhorsev1connect, proto/internalv1;
	proto/internalv1 < proto/internalv1/internalv1connect;
	fault, proto/packhorse/v1 < fault/faultrpc;
	fault < git, git/disk, git/sparse, balance, search/query, httpguard, lfs;
	lfs < lfs/wire;
	bulk < unaryhttp, httpreuse, connlimit, clientaddr;
	fault, httpreuse < bucket;
	git/disk < git/mmap, credfile;
	git/disk, lfs < lfs/objects, lfs/locks;
	git, git/pktline, fault < git/protocol;
	git/protocol < node;
	node, credfile, httpreuse, balance < origin;
	git, fault < mirror/forge;
	node, credfile, httpreuse, clientaddr, inflight < auth;
	git, fault, inflight < resolve;
	search/query, search/schema, search/ipc < search/worker;
	git, search/query, search/schema, search/ipc < search;
	git, git/mmap < git/pack, git/refs, git/bitmap;
	git/pack < git/graph;
	git/pack, lfs < lfs/pointers;
	git, balance, inflight, git/reaper, git/cgroup < git/process;
	git, balance, inflight < admit;
	git/refs, git/graph, git/process, git/pktline < repo;
	git, git/graph, git/process, git/pktline, bulk < packsource;
	packsource < packcache;
	git/protocol, git/bitmap, git/sparse, packsource < packsource/native;
	node, repo, packsource < uploadpack;
	repo, admit < lookup;
	repo < doctor;
	git, git/disk < pushjournal;
	git, bucket < replog;
	replog, git/disk < hydrate;
	pushjournal, git/process < pushrecovery;
	node, repo, pushrecovery, lfs/pointers < receivepack;
	receivepack, httpreuse, bucket < webhook;
	uploadpack, receivepack, packcache, lookup, resolve, lfs/pointers, lfs/locks, lfs/objects < storage;
	origin, lfs, lfs/wire < lfs/client;
	storage, lfs/client < mirror;
	storage, hydrate < store;
	clientaddr < observe;
	balance, connlimit, clientaddr, httpreuse, inflight < app;
	bulk, fault < sidechannel;
	storage, lfs, search, sidechannel, clientaddr, observe/sli, fault/faultrpc, proto/packhorse/v1/packhorsev1connect, proto/internalv1/internalv1connect, proto/packhorse/health/v1 < control;
	unaryhttp, proto/packhorse/v1/packhorsev1connect, proto/packhorse/health/v1 < client;
	search < web, web/api;
	search, client, inflight, fault/faultrpc, proto/internalv1/internalv1connect < search/remote;
	node, lfs, inflight, resolve, sidechannel, unaryhttp, fault/faultrpc, proto/packhorse/v1/packhorsev1connect, proto/internalv1/internalv1connect, proto/packhorse/health/v1 < remote;
	node, balance, resolve < router;
	router, auth, admit, bulk, observe/sli, lfs < gateway;
	gateway, connlimit, clientaddr, httpguard, lfs/wire < gateway/githttp;
	gateway, connlimit, clientaddr < gateway/gitssh;
	git, git/pktline < bench/fleet;
	bench/page, cli < compare;
	bench/loadgen < bench/app;
	bench/loadgen, bulk, git, git/pktline, client < bench/gitload;
	bench/gitload, bench/fleet, bench/chart, bench/page < bench/ci, bench/cold, bench/matrix, bench/search, bench/lab/exists;
	bench/ci, bench/link < bench/mirror;
	bench/gitload, bench/link < bench/lfs;
	bench/gitload, bench/link, bucket < bench/store;
	bench/loadgen, bench/chart, bench/page, balance < bench/lab/sched;
	bench/loadgen, bench/chart, bench/page, git/process < bench/lab/spawn;
	bench/app, bench/ci, bench/cold, bench/lfs, bench/matrix, bench/mirror, bench/store, bench/search, bench/lab/exists, bench/lab/sched, bench/lab/spawn, compare < bench;
	admit, packcache, origin < top;
	top < top/tui;
	gateway/gitssh, storage, mirror, webhook, credfile, app, observe, observe/tracing, cli, search/ipc, bucket < config;
	config < statedir;
	app, router, mirror < adminapi;
	adminapi, mirror/forge, statedir, control, remote, gateway/githttp, observe/proctree, observe/watchdog, search/remote, web, web/api, top, doctor, packsource/native, store < roles;
	roles, top/tui, estimate < command;
	command < cmd/packhorse;
	search/worker, cli < cmd/packhorse-search;
	bench < cmd/packhorse-bench;

	# Tests only: any test may import gittest and bucket/buckettest, tests of a packsource.Source sourcetest, and nothing
	# else may.
	git < gittest;
	bucket < bucket/buckettest;
	store, bucket/buckettest < store/storetest;
	gittest, packsource < packsource/sourcetest;
	gittest, cli, bench/loadgen < bench/benchtest;
`

// testsMayImport adds to the table for tests: what a package is given by others, put together as in the real thing.
var testsMayImport = map[string][]string{
	"fault/faultrpc":    {"proto/internalv1"},
	"client":            {"fault", "fault/faultrpc", "command"},
	"observe/tracing":   {"inflight"},
	"command":           {"compare"},
	"search/remote":     {"admit", "bulk", "control"},
	"packsource/native": {"packcache"},
	"mirror":            {"admit", "auth", "bulk", "gateway", "gateway/githttp", "router"},
	"uploadpack":        {"packcache", "packsource/native", "store/storetest"},
	"receivepack":       {"store/storetest"},
	"remote": {"admit", "auth", "balance", "control", "gateway", "gateway/githttp", "git/process", "packcache",
		"packsource", "receivepack", "router", "storage", "uploadpack"},
	"search": {"search/worker"},
}

// forbidden edges hold whatever the table allows.
const forbidden = `
	gateway -> repo
	gateway -> storage
	gateway -> packcache
	gateway/githttp -> repo
	gateway/githttp -> storage
	gateway/githttp -> packcache
	gateway/gitssh -> repo
	gateway/gitssh -> storage
	gateway/gitssh -> packcache
	router -> repo
	router -> storage
	router -> packcache
	packcache -> uploadpack
	packcache -> repo
	observe -> git
`

// rooms lists the packages that may import a dependency. A name that ends in "/..." includes the packages below it.
var rooms = map[string][]string{
	"connectrpc.com/...": {"proto/packhorse/v1/packhorsev1connect",
		"proto/internalv1/internalv1connect", "fault/faultrpc", "control", "remote", "client", "search/remote", "bench/...",
		"command", "observe/tracing"},
	"github.com/spf13/...": {"config", "command", "bench", "bench/...", "compare",
		"cli"},
	"github.com/pelletier/go-toml/...":                          {"config"},
	"github.com/rogpeppe/go-internal/...":                       {},
	"github.com/prometheus/client_golang/prometheus/promhttp":   {"observe"},
	"github.com/prometheus/client_golang/prometheus/collectors": {"observe"},
	"github.com/sourcegraph/zoekt/...":                          {"search/worker"},
	"github.com/RoaringBitmap/...":                              {"search/worker"},
	"github.com/vektah/gqlparser/...":                           {"web/api"},
	"google.golang.org/grpc/...":                                {}, // tests: another client of the control API
	"golang.org/x/crypto/ssh":                                   {"gateway/gitssh", "auth", "origin", "roles"},
	"github.com/coreos/go-systemd/...":                          {"roles"},
	"github.com/pires/go-proxyproto":                            {"clientaddr"},
	"github.com/redis/...":                                      {"resolve", "bench/search"},
	"github.com/minio/...":                                      {"bucket"},
	"github.com/go-jose/...":                                    {"auth", "origin"},
	"github.com/cespare/xxhash/...":                             {"router"},
	"github.com/failsafe-go/...":                                {"origin", "resolve"},
	"maragu.dev/gomponents/...":                                 {"web"},
	"github.com/alecthomas/chroma/...":                          {"web"},
	"charm.land/...":                                            {"top/tui"},
	"github.com/charmbracelet/...":                              {"top/tui"},
	"github.com/creack/...":                                     {}, // tests: a terminal
	"github.com/chromedp/...":                                   {}, // tests: a browser
	"golang.org/x/term":                                         {"observe", "bench/loadgen", "compare"},
	"go.opentelemetry.io/otel/sdk/...":                          {"observe/tracing"},
	"go.opentelemetry.io/otel/exporters/...":                    {"observe/tracing"},
	"net/http/pprof":                                            {"observe"},
	"os/exec": {"git/process", "gittest", "bucket/buckettest", "config", "roles", "bench/...",
		"search/worker", "search/ipc"},
}

// noNetwork are the packages that read repositories; they and all below them never import net.
const noNetwork = "git"

type goPackage struct {
	ImportPath, Dir, Doc      string
	GoFiles, Imports          []string
	TestImports, XTestImports []string
}

// short is the package's name in the table: below internal/, or as it is.
func short(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, module), "internal/")
}

// listPackages lists the module's packages as they are built for goos.
func listPackages(t *testing.T, goos string) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Doc,GoFiles,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var list []goPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// parseTable returns for each package in the table everything that it may import.
func parseTable(t *testing.T, table string) map[string]map[string]bool {
	t.Helper()
	may := map[string]map[string]bool{"NONE": {}}
	for line := range strings.Lines(table) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSuffix(strings.TrimSpace(line), ";")
		if line == "" {
			continue
		}
		left, right, ok := strings.Cut(line, " < ")
		if !ok {
			t.Fatalf("bad line in the table: %q", line)
		}
		below := map[string]bool{}
		for name := range strings.SplitSeq(left, ",") {
			name = strings.TrimSpace(name)
			if may[name] == nil {
				t.Fatalf("%q is used in the table before it has a line of its own", name)
			}
			if name != "NONE" {
				below[name] = true
			}
			maps.Copy(below, may[name])
		}
		for name := range strings.SplitSeq(right, ",") {
			name = strings.TrimSpace(name)
			if may[name] != nil {
				t.Fatalf("%q has two lines in the table", name)
			}
			may[name] = below
		}
	}
	return may
}

func TestImports(t *testing.T) {
	may := parseTable(t, allowedImports)
	var never [][2]string
	for line := range strings.Lines(forbidden) {
		if from, to, ok := strings.Cut(strings.TrimSpace(line), " -> "); ok {
			never = append(never, [2]string{from, to})
		}
	}
	for _, goos := range []string{"linux", "darwin"} {
		for _, p := range listPackages(t, goos) {
			name := short(p.ImportPath)
			if len(p.GoFiles) == 0 || strings.HasPrefix(name, "e2e") {
				continue
			}
			if may[name] == nil {
				t.Errorf("package %s is not in the table of allowed imports (internal/deps_test.go)", name)
				continue
			}
			for _, imported := range p.Imports {
				if slices.Contains(never, [2]string{name, short(imported)}) {
					t.Errorf("%s imports %s, which is forbidden", name, short(imported))
				}
				if strings.HasPrefix(imported, module) && !may[name][short(imported)] {
					t.Errorf("%s imports %s, which the table does not allow", name, short(imported))
				}
				checkRooms(t, name, imported)
			}
			for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
				s := short(imported)
				if strings.HasPrefix(imported, module) && s != name && s != "gittest" &&
					s != "bucket/buckettest" &&
					(s != "bench/benchtest" || !strings.HasPrefix(name, "bench/")) &&
					(s != "packsource/sourcetest" || !may[name]["packsource"] && name != "packsource") &&
					!may[name][s] && !slices.Contains(testsMayImport[name], s) {
					t.Errorf("a test of %s imports %s, which the table does not allow", name, s)
				}
			}
		}
	}
}

func checkRooms(t *testing.T, name, imported string) {
	t.Helper()
	for room, users := range rooms {
		prefix, below := strings.CutSuffix(room, "...")
		if (imported == room || below && strings.HasPrefix(imported, prefix)) &&
			!slices.ContainsFunc(users, func(user string) bool {
				above, all := strings.CutSuffix(user, "...")
				return name == user || all && strings.HasPrefix(name, above)
			}) {
			t.Errorf("%s imports %s, which only %q may", name, imported, users)
		}
	}
	reads := name == noNetwork || strings.HasPrefix(name, noNetwork+"/")
	if reads && (imported == "net" || strings.HasPrefix(imported, "net/")) {
		t.Errorf("%s imports %s; what reads repositories knows no network", name, imported)
	}
}

// The server stays small: load generators are in packhorse-bench, and zoekt is in packhorse-search.
func TestServerImports(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "../cmd/packhorse")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOGC=400") // compilers need less CPU time
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for path := range strings.Lines(string(out)) {
		path = strings.TrimSpace(path)
		for barred, user := range map[string]string{
			module + "internal/bench": "packhorse-bench", module + "internal/compare": "packhorse-bench",
			"github.com/sourcegraph/zoekt": "packhorse-search", "github.com/go-enry": "packhorse-search",
			module + "internal/search/worker": "packhorse-search", "github.com/chromedp": "tests",
			"google.golang.org/grpc": "tests", "golang.org/x/net/trace": "packhorse-search",
		} {
			if strings.HasPrefix(path, barred) {
				t.Errorf("cmd/packhorse imports %s, which only %s may", path, user)
			}
		}
	}
}

// The linker removes methods that are never called. It keeps all exported methods as soon as one linked function looks
// up methods by name with reflection, and the server then has 54 instead of 31 MB. Templates do so (text/template,
// html/template, cobra's SetVersionTemplate), and with them the debug pages of golang.org/x/net/trace, which grpc-go
// imports. GraphQL libraries that call resolvers by name (graph-gophers) do so, too. An import alone is harmless.
func TestServerIsSmall(t *testing.T) {
	const most = 38_500_000 // bytes; object storage took 2.5 MB, Git LFS 1.5 MB, safe mirrors and webhooks 0.5 MB
	program := filepath.Join(t.TempDir(), "packhorse")
	cmd := exec.Command("go", "build", "-ldflags=-s -w -dumpdep", "-o", program, "../cmd/packhorse")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOGC=400") // compilers need less CPU time
	graph, err := cmd.CombinedOutput()                          // lines "FUNCTION <FLAGS> -> FUNCTION" of what is linked
	if err != nil {
		t.Fatalf("go build: %v\n%.2000s", err, graph)
	}
	if !bytes.Contains(graph, []byte("main.main -> ")) {
		t.Fatalf("the linker printed no dependencies: %.2000s", graph)
	}
	found := map[string]bool{}
	for line := range bytes.Lines(graph) {
		if name, _, ok := bytes.Cut(line, []byte(" <ReflectMethod>")); ok && !found[string(name)] {
			found[string(name)] = true
			t.Errorf("cmd/packhorse links %s, which looks up methods by name: find its caller in the output of go build "+
				"-ldflags=-dumpdep", name)
		}
	}
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > most {
		t.Errorf("cmd/packhorse has %d bytes, want at most %d", info.Size(), most)
	}
}

func TestEveryPackageIsDocumented(t *testing.T) {
	for _, p := range listPackages(t, "linux") {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("package %s has no doc comment that says what it is for", short(p.ImportPath))
		}
	}
}

// Work before main hides the order of events: package roles connects the parts explicitly. Generated code is exempt,
// because protobuf registers its messages so. The reaper is exempt, because it is a separate process that does not need
// the other initialization.
func TestNoInit(t *testing.T) {
	for _, p := range listPackages(t, "linux") {
		for _, f := range p.GoFiles {
			if strings.HasSuffix(f, ".pb.go") || short(p.ImportPath)+"/"+f == "git/reaper/early_linux.go" {
				continue
			}
			text, err := os.ReadFile(p.Dir + "/" + f)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(text, []byte("\nfunc init()")) {
				t.Errorf("%s/%s has an init function", short(p.ImportPath), f)
			}
		}
	}
}
