// Package internal_test checks the rules of the project: the imports of each package, the place of dependencies,
// package comments, and the links in documents.
package internal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/packhorse-git/packhorse/"

// rules lists what the packages of each district may import from others. A district is a folder of internal/. A line of
// a package adds to the line of its district. "git" is that package alone, "git/..." includes those below it. Packages
// of one district may import each other. ARCHITECTURE.md draws the same picture.
const rules = `
	fault/faultrpc: proto/...
	schedule:       fault
	git:            fault schedule/...
	transport:      fault git/disk schedule/retry
	lfs:            fault git/...
	search:         fault/... schedule/... git git/disk proto/... client
	node:           fault/... schedule/... git/... transport/... lfs/... proto/...
	node/control:   search/...
	node/webhook:   store/bucket
	gateway:        fault/... schedule/... transport/... proto/... search/... node git git/disk git/pktline git/protocol
	gateway:        lfs lfs/wire
	gateway/web/browse: git/repo
	mirror:         fault schedule/... git/... transport/... lfs/... node/...
	store:          fault schedule/... git/... transport/... lfs/... node/...
	operations:     fault schedule/... git/... transport/... node/packcache mirror/origin
	operations/doctor: gateway/... mirror/... node/... store/... proto/... server/...
	server:         fault/... schedule/... git/... transport/... lfs/... search/... proto/... client node/... gateway/...
	server:         mirror/... store/... operations/...
	bench:          git/... proto/... client store/bucket operations/accesslog server/cli
	client:         proto/... transport/unaryhttp schedule/retry
	cmd:            server/... search/... bench/...
`

// testsMayImport adds to the rules for tests: what a package is given by others, put together as in the real thing. All
// tests may import gittest and buckettest.
const testsMayImport = `
	fault:     proto/...
	client:    fault/... server/command
	node:      store/storetest
	gateway:   git/process node/...
	mirror:    gateway/...
	search:    transport/... node/control
	server:    bench/compare
`

// forbidden edges hold within a district, too.
const forbidden = `
	node/packcache -> node/uploadpack
	node/packcache -> git/repo
	operations/observe -> git
`

// rooms lists the packages that may import a dependency. A name that ends in "/..." includes the packages below it.
var rooms = map[string][]string{
	"connectrpc.com/...": {"proto/packhorse/v1/packhorsev1connect",
		"proto/internalv1/internalv1connect", "fault/faultrpc", "node/control", "gateway/auth", "gateway/remote",
		"client",
		"search/remote", "bench/...",
		"server/adminapi", "server/command", "operations/observe"},
	"github.com/spf13/...": {"server/config", "server/command", "server/cli",
		"bench/..."},
	"github.com/pelletier/go-toml/...":                          {"server/config", "server/migrate"},
	"github.com/rogpeppe/go-internal/...":                       {},
	"github.com/prometheus/client_golang/prometheus/promhttp":   {"operations/observe"},
	"github.com/prometheus/client_golang/prometheus/collectors": {"operations/observe"},
	"github.com/sourcegraph/zoekt/...":                          {"search/worker"},
	"github.com/RoaringBitmap/...":                              {"search/worker"},
	"github.com/vektah/gqlparser/...":                           {"gateway/web/api"},
	"google.golang.org/grpc/...":                                {}, // tests: another client of the control API
	"golang.org/x/crypto/ssh": {"gateway/...", "mirror/origin", "server/roles",
		"node/edit"},
	"github.com/coreos/go-systemd/...":       {"server/roles"},
	"github.com/pires/go-proxyproto":         {"transport/clients"},
	"github.com/gomodule/redigo/...":         {"gateway/resolve"},
	"github.com/minio/...":                   {"store/bucket", "store/bucket/buckettest"},
	"github.com/go-jose/...":                 {"gateway/auth", "mirror/origin"},
	"github.com/cespare/xxhash/...":          {"gateway/router"},
	"github.com/failsafe-go/...":             {"mirror/origin", "gateway/resolve"},
	"maragu.dev/gomponents/...":              {"gateway/web/..."},
	"github.com/alecthomas/chroma/...":       {"gateway/web/..."},
	"github.com/charmbracelet/...":           {"operations/top"},
	"github.com/creack/...":                  {}, // tests: a terminal
	"github.com/chromedp/...":                {}, // tests: a browser
	"golang.org/x/term":                      {"operations/...", "bench/loadgen"},
	"go.opentelemetry.io/otel/sdk/...":       {"operations/observe"},
	"go.opentelemetry.io/otel/exporters/...": {"operations/observe"},
	"net/http/pprof":                         {"operations/observe"},
	"os/exec": {"git/process", "git/gittest", "store/bucket/buckettest", "server/config", "server/roles", "server/command",
		"bench/...", "search/worker", "search/ipc"},
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

// parseRules returns the patterns of each line.
func parseRules(t *testing.T, text string) map[string][]string {
	t.Helper()
	parsed := map[string][]string{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		name, patterns, ok := strings.Cut(line, ":")
		if !ok {
			t.Fatalf("bad line: %q", line)
		}
		parsed[name] = append(parsed[name], strings.Fields(patterns)...)
	}
	return parsed
}

// covers reports whether one of patterns is name, or ends in "/..." and name is that or below.
func covers(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		above, all := strings.CutSuffix(pattern, "/...")
		return name == above || all && strings.HasPrefix(name, above+"/")
	})
}

// allows reports whether the rules allow that package name imports the other.
func allows(rules map[string][]string, name, other string) bool {
	district, _, _ := strings.Cut(name, "/")
	return covers([]string{district + "/..."}, other) || covers(rules[district], other) || covers(rules[name], other)
}

func TestImports(t *testing.T) {
	allowed, inTests := parseRules(t, rules), parseRules(t, testsMayImport)
	used := map[string]bool{}
	for _, goos := range []string{"linux", "darwin"} {
		for _, p := range listPackages(t, goos) {
			name := short(p.ImportPath)
			if len(p.GoFiles) == 0 || strings.HasPrefix(name, "e2e") || strings.HasPrefix(name, ".ci") {
				continue
			}
			for _, imported := range p.Imports {
				checkRooms(t, name, imported)
				other := short(imported)
				if !strings.HasPrefix(imported, module) {
					continue
				}
				used[name+" -> "+other] = true
				if strings.Contains(forbidden, "\t"+name+" -> "+other+"\n") || !allows(allowed, name, other) ||
					strings.HasSuffix(other, "test") && !strings.HasSuffix(name, "test") {
					t.Errorf("%s imports %s, which the rules do not allow (internal/deps_test.go)", name, other)
				}
			}
			for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
				other := short(imported)
				if strings.HasPrefix(imported, module) && other != "git/gittest" && other != "store/bucket/buckettest" &&
					!allows(allowed, name, other) && !allows(inTests, name, other) {
					t.Errorf("a test of %s imports %s, which the rules do not allow", name, other)
				}
			}
		}
	}
	checkUnused(t, allowed, used)
}

// An unused pattern would allow imports that no review has seen.
func checkUnused(t *testing.T, rules map[string][]string, used map[string]bool) {
	t.Helper()
	for name, patterns := range rules {
		for _, pattern := range patterns {
			found := false
			for edge := range used {
				from, to, _ := strings.Cut(edge, " -> ")
				found = found || covers([]string{name + "/..."}, from) && covers([]string{pattern}, to)
			}
			if !found {
				t.Errorf("no package of %s imports %s: remove it from the rules", name, pattern)
			}
		}
	}
}

func checkRooms(t *testing.T, name, imported string) {
	t.Helper()
	for room, users := range rooms {
		prefix, below := strings.CutSuffix(room, "...")
		if (imported == room || below && strings.HasPrefix(imported, prefix)) &&
			!covers(users, name) {
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
			module + "internal/bench":      "packhorse-bench",
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
	const most = 42_800_000 // bytes; storage took 2.5 MB, Git LFS 1.5 MB, calls 2.7 MB, management 2.6 MB, pages 2.3 MB
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

// Package httpguard makes all HTTP clients, so that none takes the answer of another request for its own.
func TestHTTPClients(t *testing.T) {
	for _, p := range listPackages(t, "linux") {
		name := short(p.ImportPath)
		if strings.HasPrefix(name, "bench") || strings.HasSuffix(name, "test") || strings.HasPrefix(name, ".ci") ||
			name == "client" || name == "transport/httpguard" { // client speaks HTTP/2 only
			continue
		}
		for _, f := range p.GoFiles {
			text, err := os.ReadFile(p.Dir + "/" + f)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(text, []byte("&http.Client{")) || bytes.Contains(text, []byte("http.DefaultClient")) {
				t.Errorf("%s/%s makes an HTTP client: use httpguard.Client", name, f)
			}
		}
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
			if strings.HasSuffix(f, ".pb.go") || short(p.ImportPath)+"/"+f == "git/reaper/main_linux.go" {
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
