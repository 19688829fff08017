package web_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/gateway/auth"
	"github.com/packhorse-git/packhorse/internal/gateway/web"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/search"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

const (
	commitA = "0123456789abcdef0123456789abcdef01234567"
	commitB = "89abcdef0123456789abcdef0123456789abcdef"
)

// world has repositories with real files and hostile ones. It is the searcher and the node of a test.
type world struct {
	files map[string]map[string]string // by repository and path
	fresh map[string]search.Freshness
	fail  error // of searches

	timeout atomic.Int64 // of the last search
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{files: map[string]map[string]string{}, fresh: map[string]search.Freshness{}}
	add := func(repository string, patterns ...string) {
		files := map[string]string{}
		for _, pattern := range patterns {
			names, err := filepath.Glob(pattern)
			if err != nil || len(names) == 0 {
				t.Fatal(pattern, err)
			}
			for _, name := range names {
				if strings.HasSuffix(name, "_test.go") { // they contain the words that tests search for
					continue
				}
				data, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				files[strings.TrimPrefix(filepath.ToSlash(name), "../../")] = string(data)
			}
		}
		w.files[repository] = files
		w.fresh[repository] = search.Freshness{Repository: repository, Indexed: commitA, Current: commitA, Branch: "main"}
	}
	add("packhorse/server", "../../fault/*.go", "../../search/*.go", "../resolve/*.go", "../../transport/credfile/*.go")
	add("packhorse/pages", "*.go", "page/*.go", "page/assets/*")
	add("team/a-name-that-is-rather-long-for-a-phone/with-parts/application", "../../git/*.go")
	w.fresh["packhorse/pages"] = search.Freshness{Repository: "packhorse/pages", Indexed: commitA, Current: commitB,
		Branch: "main", Lag: 3}
	w.fresh["team/a-name-that-is-rather-long-for-a-phone/with-parts/application"] = search.Freshness{
		Repository: "team/a-name-that-is-rather-long-for-a-phone/with-parts/application", Current: commitB,
		Branch: "trunk", Lag: -1}
	w.files["hostile"] = map[string]string{
		`"><script>alert(1)</script>.html`: "<script>alert('needle')</script> & needle\n\"needle\" 'needle' </mark><img src=x onerror=alert(1)>\n",
		"javascript:alert(1)//needle":      "needle\n",
		"bidi.go": "/* needle \u202e } \u2066if isAdmin\u2069 \u2066 begin */\n" +
			"needle \x01\x1b[31m\u200b\n",
		"a b/%2e%2e/#L3?q=\u00fc\u00f1.md": "needle\n",
		"long.js":                          strings.Repeat("x ", 5000) + "needle" + strings.Repeat(" y", 5000) + "\n",
		"utf8.txt":                         "needle \xff\xfe needle\n",
		"binary.bin":                       "\x00\x01needle",
		"caf\xe9/\xff.txt":                 "needle\n",
		"empty.txt":                        "",
		"large.txt":                        strings.Repeat("0123456789abcdef\n", 1<<17),
		"crlf.txt":                         "one needle\r\ntwo\r\n",
	}
	w.fresh["hostile"] = search.Freshness{Repository: "hostile", Indexed: commitA, Current: commitA,
		Branch: "<b>&main", Error: "<i>bad</i>"}
	return w
}

// Search finds the words of a query in files. It supports repo: and file:.
func (w *world) Search(_ context.Context, r search.Request, sink search.Sink) (search.Summary, error) {
	w.timeout.Store(int64(r.Timeout))
	if w.fail != nil {
		return search.Summary{}, w.fail
	}
	s := search.Summary{Done: true, Elapsed: 3200 * time.Microsecond}
	var word, repo, file string
	for field := range strings.FieldsSeq(r.Query.Text) {
		switch {
		case strings.HasPrefix(field, "repo:"):
			repo = strings.Trim(strings.TrimPrefix(field, "repo:"), "^$")
		case strings.HasPrefix(field, "file:"):
			file = strings.TrimPrefix(field, "file:")
		case !strings.Contains(field, ":"):
			word = field
		}
	}
	fold := strings.IndexFunc(word, unicode.IsUpper) < 0
	for _, repository := range sorted(w.files) {
		if path, err := git.ParseRepoPath(repository); err != nil || !mayRead(r.May, path) ||
			!strings.Contains(repository, repo) {
			continue
		}
		s.Searched++
		any := false
		for _, name := range sorted(w.files[repository]) {
			element, n := result(repository, name, w.files[repository][name], word, fold)
			if n == 0 || !strings.Contains(name, file) {
				continue
			}
			if s.Results == r.Limit {
				s.Limited = true
				continue
			}
			any = true
			s.Results++
			s.Matches += n
			if err := sink.Matches(search.Batch{JSON: element, Results: 1, Matches: n}); err != nil {
				return s, err
			}
		}
		if any {
			s.Repositories = append(s.Repositories, w.fresh[repository])
			if w.fresh[repository].Indexed == "" {
				s.Unindexed = append(s.Unindexed, repository)
			}
		}
	}
	return s, nil
}

func sorted[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func mayRead(readable search.Readable, path git.RepoPath) bool {
	if readable == nil {
		return true
	}
	may, _ := readable([]git.RepoPath{path})
	return may[0]
}

// visitor is a user of the pages.
type visitor struct {
	name   string
	reader search.Readable
}

func (v visitor) Name() string               { return v.name }
func (v visitor) Reader() search.Readable    { return v.reader }
func (v visitor) Note(...slog.Attr)          {}
func (v visitor) Failed(error)               {}
func (v visitor) Address(path string) string { return "http://git.example/" + path }

func (v visitor) Hold(int) error { return nil }

func (v visitor) Secure() bool            { return false }
func (v visitor) MaySignIn() bool         { return v.reader != nil }
func (v visitor) Administers() bool       { return false }
func (v visitor) Identity() auth.Identity { return auth.Identity{Name: v.name} }
func (v visitor) Identify(context.Context, string, string) (auth.Identity, error) {
	return auth.Identity{}, nil
}

// Open and the other methods of repositories: package e2e tests those.
func (v visitor) Open(git.RepoPath) error                   { return fault.New(fault.NotFound, "not there") }
func (v visitor) Revisions([]string) ([]node.Result, error) { return nil, nil }
func (v visitor) Read(gateway.Read) error                   { return nil }
func (v visitor) LFSContent(lfs.Object) ([]byte, error) {
	return nil, fault.New(fault.NotFound, "not there")
}
func (v visitor) LFSStates([]lfs.Object) ([]lfs.Status, error) {
	return nil, fault.New(fault.NotFound, "not there")
}
func (v visitor) SendLFS(lfs.Object, http.Header) {}
func (v visitor) List(*packhorsev1.ListRequest, string) (*packhorsev1.ListResponse, error) {
	return &packhorsev1.ListResponse{}, nil
}

// serve serves the pages of a world.
func serve(t testing.TB, w *world, v web.Visitor) *httptest.Server {
	t.Helper()
	p, err := web.NewPages(web.PageOptions{Searcher: w, Key: []byte("key")})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !p.Has(r.URL.Path) {
			http.NotFound(rw, r)
			return
		}
		if err := p.Serve(rw, r, v); err != nil {
			status := http.StatusInternalServerError
			switch fault.KindOf(err) {
			case fault.Unauthenticated:
				status = http.StatusUnauthorized
			case fault.NotFound:
				status = http.StatusNotFound
			}
			http.Error(rw, fault.Message(err), status)
		}
	}))
	t.Cleanup(func() { s.Close(); p.Close() })
	return s
}
