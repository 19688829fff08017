package api_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway/web/api"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/schema"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// searcher returns results or errors by the pattern of the query.
type searcher struct {
	mu    sync.Mutex
	asked []search.Request
}

func (s *searcher) Search(ctx context.Context, r search.Request, sink search.Sink) (search.Summary, error) {
	s.mu.Lock()
	s.asked = append(s.asked, r)
	s.mu.Unlock()
	summary := search.Summary{Elapsed: 12 * time.Millisecond, Index: 2500 * time.Microsecond, Link: 125 * time.Microsecond,
		Searched: 3}
	word := r.Query.Root.Pattern
	switch word {
	case "unavailable":
		return summary, fault.Retry(fault.Unavailable, time.Second, "the search worker is starting; try again")
	case "crash", "busy":
	case "panic":
		panic("oh")
	case "slow":
		<-ctx.Done()
		return summary, ctx.Err()
	}
	send := func(files ...*schema.File) error {
		var b search.Batch
		for i, f := range files {
			if i > 0 {
				b.JSON = append(b.JSON, ',')
			}
			b.JSON = r.Format.Append(b.JSON, f)
			b.Results++
			b.Matches += f.Matches()
		}
		summary.Results += b.Results
		summary.Matches += b.Matches
		return sink.Matches(b)
	}
	switch word {
	case "nothing":
	case "unread":
		summary.Searched = 0
	case "many":
		for i := range min(r.Limit, 11_000) {
			f := mainFile()
			f.Path = fmt.Sprintf("file%d.go", i)
			if err := send(f); err != nil {
				return summary, err
			}
		}
		summary.Limited = true
	case "twice":
		f := mainFile()
		f.Chunks[0].Ranges = append(f.Chunks[0].Ranges, f.Chunks[0].Ranges[0])
		if err := send(f); err != nil {
			return summary, err
		}
	default:
		if err := send(mainFile(), &schema.File{Kind: schema.Path, Repository: "team/app", Path: "main/x.go", Commit: commit,
			Branches: []string{"main"}, Whole: []byte("x"),
			PathRanges: []schema.Range{{End: schema.Position{Offset: 4, Column: 4}}}}); err != nil {
			return summary, err
		}
		if word == "crash" {
			return summary, fault.Retry(fault.Unavailable, time.Second, "the search process ended during the search; try again")
		}
		if err := sink.Progress(summary); err != nil {
			return summary, err
		}
		if err := send(&schema.File{Kind: schema.Symbol, Repository: "team/other", Path: "a b.go", Commit: commit,
			Branches: []string{"main"}, Whole: []byte("func main() {}\n"),
			Chunks: []schema.Chunk{{Content: []byte("func main() {}\n"),
				Ranges: []schema.Range{{Start: schema.Position{Offset: 5, Column: 5}, End: schema.Position{Offset: 9, Column: 9},
					Symbol: &schema.Sym{Name: "main", Kind: "function",
						Container: "main"}}}}}}, &schema.File{Kind: schema.Repository, Repository: "team/app"}); err != nil {
			return summary, err
		}
		summary.Repositories = []search.Freshness{
			{Repository: "team/app", Indexed: commit, Current: strings.Repeat("f", 40), Lag: 2, Branch: "main"},
			{Repository: "team/other", Indexed: commit, Current: commit, Branch: "main"},
		}
		summary.Unindexed, summary.Missing = []string{"team/new"}, []string{"team/newer"}
	}
	summary.Done = true
	return summary, nil
}

func mainFile() *schema.File {
	return &schema.File{Repository: "team/app", Path: "cmd/main.go", Commit: commit, Branches: []string{"main"},
		Language: "Go", Whole: []byte("package main\n\nfunc main() {}\n"),
		Chunks: []schema.Chunk{{Content: []byte("func main() {}\n"), Start: schema.Position{Offset: 14, Line: 2},
			Ranges: []schema.Range{{Start: schema.Position{Offset: 19, Line: 2, Column: 5},
				End: schema.Position{Offset: 23, Line: 2, Column: 9}}}}}}
}

type list []string

func (l list) Repositories(_ context.Context, each func(git.RepoPath) error) error {
	for _, name := range l {
		path, err := git.ParseRepoPath(name)
		if err == nil {
			err = each(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// visitor may read the repositories below team/.
type visitor struct {
	name   string
	notes  []slog.Attr
	failed error
}

func (v *visitor) Name() string { return v.name }

func (v *visitor) Reader() search.Readable {
	return search.Each(func(path git.RepoPath) bool { return strings.HasPrefix(path.String(), "team/") })
}

func (v *visitor) Note(attrs ...slog.Attr) { v.notes = append(v.notes, attrs...) }
func (v *visitor) Failed(err error)        { v.failed = err }

// server serves the API as a gateway does.
func server(t testing.TB, change ...func(*api.API)) (*httptest.Server, *searcher) {
	t.Helper()
	s := &searcher{}
	a, err := api.NewAPI(api.APIOptions{Searcher: s, Repositories: list{"team/b", "team/a", "other/c", "team/a-b"},
		Version: "1.2.3", Built: time.Date(2026, 11, 20, 23, 0, 0, 0, time.UTC),
		Status: func(may search.Readable) search.Status {
			return search.Status{Searching: may != nil, Jobs: []search.Job{}, Failures: []search.IndexFailure{}}
		}})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range change {
		f(a)
	}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
			}
			r.Body = io.NopCloser(z)
		}
		name, _ := strings.CutPrefix(r.Header.Get("Authorization"), "token ")
		if err := a.Serve(w, r, &visitor{name: name}); err != nil {
			http.Error(w, fault.KindOf(err).String()+": "+fault.Message(err), http.StatusTeapot)
		}
	}))
	t.Cleanup(h.Close)
	return h, s
}

// conversation is a request.
type conversation struct{ method, target, headers, body string }

// say sends a request and returns the response as text.
func say(t testing.TB, h *httptest.Server, c conversation) string {
	t.Helper()
	request, err := http.NewRequest(c.method, h.URL+c.target, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(c.headers) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		request.Header.Set(name, value)
	}
	response, err := h.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Errorf("%s: %v", c.target, err)
	}
	return fmt.Sprintf("%d %s\n\n%s", response.StatusCode, response.Header.Get("Content-Type"), body)
}

// srcSearch is what src search -json sends.
const srcSearch = `fragment FileMatchFields on FileMatch {
	repository { name url }
	file { name path url content commit { oid } }
	lineMatches { preview lineNumber offsetAndLengths limitHit }
}
fragment CommitSearchResultFields on CommitSearchResult {
	messagePreview { value highlights { line character length } }
	diffPreview { value highlights { line character length } }
	label { html }
	url
	matches { url body { html text } highlights { character line length } }
	commit { repository { name } oid url subject author { date person { displayName } } }
}
fragment RepositoryFields on Repository { name url externalURLs { serviceType url } label { html } }
fragment SearchResultsAlertFields on SearchResults { alert { title description proposedQueries { description query } } }
query ($query: String!) {
	site { buildVersion }
	search(query: $query) {
		results {
			results {
				__typename
				... on FileMatch { ...FileMatchFields }
				... on CommitSearchResult { ...CommitSearchResultFields }
				... on Repository { ...RepositoryFields }
			}
			limitHit
			cloning { name }
			missing { name }
			timedout { name }
			resultCount
			elapsedMilliseconds
			...SearchResultsAlertFields
		}
	}
}`

// post is a request for GraphQL.
func post(document string, variables map[string]any) conversation {
	body, _ := json.Marshal(map[string]any{"query": document, "variables": variables})
	return conversation{"POST", "/.api/graphql", "Content-Type: application/json", string(body)}
}

// TestGolden compares responses byte by byte with those that clients are known to read.
func TestGolden(t *testing.T) {
	h, _ := server(t)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte(post(srcSearch, map[string]any{"query": "main"}).body))
	z.Close()
	for name, c := range map[string]conversation{
		"own": {"GET", "/-/api/v1/search?q=main", "", ""},
		"own-form": {"POST", "/-/api/v1/search", "Content-Type: application/x-www-form-urlencoded",
			"q=nothing&count=7"},
		"own-json":       {"POST", "/-/api/v1/search", "Content-Type: application/json", `{"q":"nothing","count":7}`},
		"own-bad":        {"GET", "/-/api/v1/search?q=main+f:a(b", "", ""},
		"own-missing":    {"GET", "/-/api/v1/search", "", ""},
		"own-unknown":    {"GET", "/-/api/v1/search?q=main&limit=3", "", ""},
		"own-status":     {"GET", "/-/api/v1/search/status", "", ""},
		"own-crash":      {"GET", "/-/api/v1/search?q=crash", "", ""},
		"own-events":     {"GET", "/-/api/v1/search?q=main", "Accept: text/event-stream", ""},
		"own-events-bad": {"GET", "/-/api/v1/search?q=main+count:x", "Accept: text/event-stream", ""},
		"stream-lines":   {"GET", "/.api/search/stream?q=main", "Accept: text/event-stream", ""},
		"stream-chunks":  {"GET", "/.api/search/stream?q=main&cm=t&v=V3&t=literal", "", ""},
		"stream-limited": {"GET", "/.api/search/stream?q=many+count:5&display=2", "", ""},
		"stream-bad":     {"GET", "/.api/search/stream?q=" + url.QueryEscape("main case:perhaps"), "", ""},
		"stream-down":    {"GET", "/.api/search/stream?q=unavailable", "", ""},
		"stream-crash":   {"GET", "/.api/search/stream?q=crash", "", ""},
		"login": {"POST", "/.api/graphql?CurrentUser", "Authorization: token alice",
			`{"query":"query CurrentUser { currentUser { username } }","variables":null}`},
		"login-nobody": {"POST", "/.api/graphql", "", `{"query":"query CurrentUser { currentUser { username } }"}`},
		"version":      {"POST", "/.api/graphql", "", `{"query":"query { site { productVersion buildVersion } }"}`},
		"src-search": {"POST", "/.api/graphql", "Content-Type: application/json\nContent-Encoding: gzip",
			packed.String()},
		"src-search-bad": post(srcSearch, map[string]any{"query": "main (x y"}),
		"src-down":       post(srcSearch, map[string]any{"query": "unavailable"}),
		"src-panic":      post(srcSearch, map[string]any{"query": "panic"}),
		"src-missing":    post(srcSearch, nil),
		"repositories":   post(`query { repositories(first: 2) { nodes { id name url externalURLs { serviceKind serviceType url } } totalCount pageInfo { hasNextPage endCursor } } }`, nil),
		"more":           post(`query { repositories(first: 2, after: "team/a-b", query: "TEAM") { nodes { name } totalCount pageInfo { hasNextPage endCursor } } }`, nil),
		"src-counts": post(`{ search(query: "twice") { results { resultCount matchCount approximateResultCount } } }`,
			nil),
		"no-json": {"POST", "/.api/graphql", "", "query"},
		"get":     {"GET", "/.api/graphql?query=x", "", ""},
		"other":   {"GET", "/.api/src-cli/version", "", ""},
	} {
		got := say(t, h, c)
		path := filepath.Join("testdata", name+".golden")
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || got != string(want) {
			t.Errorf("%s: response\n%s\nwant (error %v)\n%s", name, got, err, want)
		}
	}
}

func TestServerTiming(t *testing.T) {
	t.Parallel()
	h, _ := server(t)
	response, err := h.Client().Get(h.URL + "/-/api/v1/search?q=main")
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if got := response.Header.Get("Server-Timing"); got != "index;dur=2.500, link;dur=0.125" {
		t.Errorf("Server-Timing = %q, want %q", got, "index;dur=2.500, link;dur=0.125")
	}
}

// TestFraming reads a stream as clients do: an event has the two lines event and data, and an empty one.
func TestFraming(t *testing.T) {
	t.Parallel()
	h, _ := server(t)
	_, body, _ := strings.Cut(say(t, h, conversation{"GET", "/.api/search/stream?q=many+count:all&cm=t", "", ""}), "\n\n")
	blocks := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
	seen, results := map[string]int{}, 0
	for i, block := range blocks {
		event, data, ok := strings.Cut(block, "\n")
		name, isEvent := strings.CutPrefix(event, "event: ")
		text, isData := strings.CutPrefix(data, "data: ")
		if !ok || !isEvent || !isData || strings.Contains(text, "\n") || !json.Valid([]byte(text)) || len(block) > 10<<20 {
			t.Fatalf("block %d of the stream = %.200q, want an event: line and a data: line with JSON", i, block)
		}
		seen[name]++
		switch name {
		case "matches":
			var list []struct{ Type, Path, Repository, Commit string }
			if err := json.Unmarshal([]byte(text), &list); err != nil || list[0].Type != "content" || list[0].Commit != commit {
				t.Fatalf("matches = %.300s (%v), want results of type content at %s", text, err, commit)
			}
			results += len(list)
		case "done":
			if text != "{}" || i != len(blocks)-1 {
				t.Errorf("done with data %q is event %d of %d, want {} at the end", text, i+1, len(blocks))
			}
		}
	}
	if results != 11_000 || seen["done"] != 1 || seen["progress"] == 0 || seen["filters"] != 1 {
		t.Errorf("%d results and events %v, want 11000 results, progress, 1 filters and 1 done", results, seen)
	}
}

// TestAnonymousCallers receive the advice to use a token if nothing was searched.
func TestAnonymousCallers(t *testing.T) {
	t.Parallel()
	h, _ := server(t)
	if got := say(t, h, conversation{"GET", "/.api/search/stream?q=unread", "", ""}); !strings.Contains(got,
		"Use an access token") {
		t.Errorf("stream for an anonymous caller = %s, want the advice to use an access token", got)
	}
	if got := say(t, h, conversation{"GET", "/.api/search/stream?q=unread", "Authorization: token alice",
		""}); strings.Contains(got, "Use an access token") {
		t.Errorf("stream for alice = %s, want no advice to use an access token", got)
	}
}

// TestLimits checks which parameter determines the number of results and the time limit.
func TestLimits(t *testing.T) {
	t.Parallel()
	h, s := server(t)
	for target, want := range map[string]struct {
		limit   int
		timeout time.Duration
	}{
		"/-/api/v1/search?q=nothing":                                {500, 0},
		"/-/api/v1/search?q=nothing&count=3&timeout=4":              {3, 4 * time.Second},
		"/-/api/v1/search?q=nothing+count:9+timeout:1m&count=3":     {9, time.Minute},
		"/-/api/v1/search?q=nothing+count:all":                      {1 << 20, 0},
		"/-/api/v1/search?q=nothing+count:999999999999999999":       {1 << 20, 0},
		"/.api/search/stream?q=nothing&display=20":                  {20, 0},
		"/.api/search/stream?q=nothing+count:all&display=-1":        {1 << 20, 0},
		"/.api/search/stream?q=nothing+count:all&display=1500":      {1500, 0},
		"/.api/search/stream?q=nothing+timeout:876000h&display=abc": {500, 876000 * time.Hour},
	} {
		s.asked = nil
		say(t, h, conversation{"GET", target, "", ""})
		if len(s.asked) != 1 || s.asked[0].Limit != want.limit || s.asked[0].Timeout != want.timeout ||
			s.asked[0].May == nil {
			t.Errorf("%s: requests to the searcher = %+v, want one with limit %d and timeout %v", target, s.asked, want.limit,
				want.timeout)
		}
	}
}

// TestGraphQLHasEachField requests every field of the schema: each has a value where the schema requires one.
func TestGraphQLHasEachField(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("schema.graphql")
	if err != nil {
		t.Fatal(err)
	}
	schema, err := gqlparser.LoadSchema(&ast.Source{Input: string(text)})
	if err != nil {
		t.Fatal(err)
	}
	var fieldsOf func(*ast.Definition) string
	fieldsOf = func(def *ast.Definition) string {
		fields := "__typename "
		if def.Kind == ast.Union {
			for _, name := range def.Types {
				fields += "... on " + name + " " + fieldsOf(schema.Types[name])
			}
		}
		for _, f := range def.Fields {
			if strings.HasPrefix(f.Name, "__") {
				continue
			}
			if fields += f.Name + " "; f.Name == "search" {
				fields += `(query: "main") `
			}
			if below := schema.Types[f.Type.Name()]; below.IsCompositeType() {
				fields += fieldsOf(below)
			}
		}
		return "{ " + fields + "} "
	}
	h, _ := server(t)
	query := post(fieldsOf(schema.Query), nil)
	query.headers += "\nAuthorization: token alice"
	if got := say(t, h, query); strings.Contains(got, `"errors"`) || !strings.Contains(got, `"kind":"function"`) {
		t.Errorf("response to a request for all fields = %s, want no errors and a symbol of kind function", got)
	}
}

func TestGraphQLExecution(t *testing.T) {
	t.Parallel()
	h, _ := server(t)
	variables := map[string]any{"no": false, "n": 1, "q": "team/a"}
	for document, want := range map[string]string{
		`{ a: site { id } b: site { id v: productVersion } }`:                                                  `{"data":{"a":{"id":"site"},"b":{"id":"site","v":"1.2.3"}}}`,
		`{ site { id } ...f } fragment f on Query { site { __typename id productVersion } }`:                   `{"data":{"site":{"id":"site","__typename":"Site","productVersion":"1.2.3"}}}`,
		`query($no: Boolean!) { site @skip(if: true) { id } currentUser @include(if: $no) { id } __typename }`: `{"data":{"__typename":"Query"}}`,
		`query($no: Boolean!) { site @include(if: $no) { id } }`:                                               `{"data":{}}`,
		`query($n: Int, $q: String) { repositories(first: $n, query: $q) { nodes { name } totalCount } }`:      `{"data":{"repositories":{"nodes":[{"name":"team/a"}],"totalCount":2}}}`,
		`{ repositories(first: -1) { nodes { name } } }`:                                                       `{"data":{"repositories":{"nodes":[]}}}`,
		`{ repositories(first: null, after: "team/a-b") { nodes { name } } }`:                                  `{"data":{"repositories":{"nodes":[{"name":"team/b"}]}}}`,
		`{ search(query: "nothing") { results { results { ... on Repository { name } } } } }`:                  `{"data":{"search":{"results":{"results":[]}}}}`,
		`{ search(query: "main") { results { results { ... on Repository { name } } } } }`:                     `{"data":{"search":{"results":{"results":[{},{},{},{"name":"team/app"}]}}}}`,

		`{ repositories(first: 99999999999999999999) { totalCount } }`:                    `{"errors":[{"message":"`,
		`{ a: site { id } a: currentUser { id } }`:                                        `{"errors":[{"message":"field \"a\" is requested twice`,
		`{ repositories(first: 1) { totalCount } repositories(first: 2) { totalCount } }`: `{"errors":[{"message":"field \"repositories\" is requested twice`,
		`{ site { nothing } }`:                            `{"errors":[{"message":"Cannot query field`,
		`{ site }`:                                        `{"errors":[{"message":"Field \"site\" of type`,
		`{ __schema { queryType { name } } }`:             `{"errors":[{"message":"field \"__schema\" is not supported: this server does not describe its schema","path":["__schema"]}],"data":null}`,
		`query a { site { id } } query b { site { id } }`: `{"errors":[{"message":"no operation with the name`,
	} {
		c := post(document, variables)
		got := strings.TrimSpace(strings.TrimPrefix(say(t, h, c), "200 application/json; charset=utf-8\n\n"))
		if !strings.HasPrefix(got, want) || strings.HasPrefix(want, `{"data"`) && got != want {
			t.Errorf("response to %s = %s, want %s", document, got, want)
		}
	}
}

// TestGraphQLSize checks that the size of a document counts everything that validation walks.
func TestGraphQLSize(t *testing.T) {
	t.Parallel()
	h, _ := server(t)
	var chain strings.Builder
	for i := range 100 {
		fmt.Fprintf(&chain, "fragment f%d on Query { ...f%d } ", i, i+1)
	}
	unknown := strings.Repeat("a ", 1000)
	for name, document := range map[string]string{
		"operations":       strings.Repeat("{ ...f } ", 100) + "fragment f on Query { " + unknown + "}",
		"unused fragments": "{ site { id } } " + chain.String() + "fragment f100 on Query { " + unknown + "}",
		"inline fragments": "{ " + strings.Repeat("... { ", 900) + "site { id } " + strings.Repeat("} ", 900) +
			strings.Repeat("...{site{id}} ", 600) + "}",
		"arguments":  "{ site(" + strings.Repeat("a: 1 ", 3000) + ") { id } }",
		"list":       "{ search(query: [" + strings.Repeat("1 ", 3000) + "]) { results { resultCount } } }",
		"directives": "{ site " + strings.Repeat("@a ", 3000) + "{ id } }",
		"variables":  "query(" + strings.Repeat("$a: Int ", 3000) + ") { site { id } }",
	} {
		if got := say(t, h, post(document, nil)); !strings.Contains(got, "query too large: at most 2000") {
			t.Errorf("%s: response %.300s, want that the query is too large", name, got)
		}
	}
}

// TestGraphQLLongResponses checks that aliases of one value of one object do not exceed the limit of the response.
func TestGraphQLLongResponses(t *testing.T) {
	t.Parallel()
	const limit = 10_000
	h, _ := server(t, func(a *api.API) { a.LimitResponses(limit) })
	var aliases strings.Builder
	for i := range 500 {
		fmt.Fprintf(&aliases, "a%d: content ", i)
	}
	got := say(t, h, post("{ site { id } search(query: \"twice\") { results { results { ... on FileMatch { file { "+
		aliases.String()+"} } } } } }", nil))
	if !strings.Contains(got, fmt.Sprintf("response too long: more than %d bytes", limit)) ||
		!strings.HasSuffix(got, `"data":{"site":{"id":"site"},"search":null}}`+"\n") {
		t.Errorf("response of %d bytes: %.300s, want an error for the search alone", len(got), got)
	}
}

// TestGraphQLLists checks that the results of all requests are limited together, and that a request releases its own.
func TestGraphQLLists(t *testing.T) {
	t.Parallel()
	var a *api.API
	h, _ := server(t, func(made *api.API) { a = made; a.LimitLists(10_000) })
	ask := func(word string) string {
		return say(t, h, post("query($q: String!) { search(query: $q) { results { matchCount } } }",
			map[string]any{"q": word}))
	}
	got := ask("many")
	if !strings.HasPrefix(got, "418 ") || !strings.Contains(got, "too many searches with long results") {
		t.Errorf("response to a search with long results = %.300s, want an error", got)
	}
	if got := ask("main"); !strings.HasPrefix(got, "200 ") {
		t.Errorf("response to the next search = %.300s, want 200", got)
	}
	if n := a.Lists(); n != 0 {
		t.Errorf("bytes of results after all requests = %d, want 0", n)
	}
}

// TestBombs sends GraphQL requests that are cheap to write and expensive to answer.
func TestBombs(t *testing.T) {
	t.Parallel()
	h, s := server(t)
	var aliases, fragments, deep strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&aliases, "a%d: search(query: \"many count:all\") { results { resultCount } } ", i)
	}
	for i := range 30 {
		fmt.Fprintf(&fragments, "fragment f%d on Query { ...f%d ...f%d } ", i, i+1, i+1)
	}
	for range 1000 {
		deep.WriteString("{ search(query: \"x\") ")
	}
	for name, document := range map[string]string{
		"aliases":       "{ " + aliases.String() + "}",
		"a few aliases": "{ a: site { id } " + aliases.String()[:400] + "} } }",
		"six searches":  `{ a: search(query: "many") { results { resultCount } } b: search(query: "many") { results { resultCount } } c: search(query: "many") { results { resultCount } } d: search(query: "many") { results { resultCount } } e: search(query: "many") { results { resultCount } } f: search(query: "many") { results { resultCount } } }`,
		"fragments":     "query { ...f0 } " + fragments.String() + " fragment f30 on Query { site { id } }",
		"a loop":        "query { ...f } fragment f on Query { ...f }",
		"deep":          deep.String(),
		"long":          "{ " + strings.Repeat("site { id } ", 10_000) + "}",
		"wide":          "{ site { " + strings.Repeat("id ", 9_000) + "} }",
		"brackets":      strings.Repeat("{", 30_000),
		"lists":         `{ search(query: ` + strings.Repeat("[", 30_000) + `) }`,
		"NUL":           "{ site { id\x00 } }",
		"mutation":      "mutation { site { id } }",
	} {
		s.asked = nil
		got := say(t, h, post(document, nil))
		if !strings.Contains(got, `"errors":[{`) || len(s.asked) > 4 || len(got) > 16<<10 {
			t.Errorf("%s: %d searches, response %.500s; want at most 4 searches and a short response with errors", name,
				len(s.asked), got)
		}
	}
	for kind, body := range map[string]string{"application/json": `{"q":"` + strings.Repeat("x", 3<<20) + `"}`,
		"application/x-www-form-urlencoded": "q=" + strings.Repeat("x", 3<<20)} {
		got := say(t, h, conversation{"POST", "/-/api/v1/search", "Content-Type: " + kind, body})
		if !strings.HasPrefix(got, "400 ") || !strings.Contains(got, "at most") {
			t.Errorf("3 MiB of %s: response %.200s, want 400 with the limit", kind, got)
		}
	}
	for name, body := range map[string]string{"a large body": `{"query":"` + strings.Repeat("x", 2<<20) + `"}`,
		"nested": strings.Repeat("[", 1<<20), "empty": ""} {
		if got := say(t, h, conversation{"POST", "/.api/graphql", "", body}); !strings.HasPrefix(got, "418 ") ||
			!strings.Contains(got, "invalid: ") {
			t.Errorf("%s: response %.200s, want an error of kind invalid", name, got)
		}
	}
}

// TestClientThatStopsReading checks that a failed write ends the search.
func TestClientThatStopsReading(t *testing.T) {
	t.Parallel()
	a, err := api.NewAPI(api.APIOptions{Searcher: &searcher{}})
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"/.api/search/stream?q=many+count:all", "/-/api/v1/search?q=many+count:all"} {
		w := &stuck{ResponseRecorder: httptest.NewRecorder()}
		if err := a.Serve(w, httptest.NewRequest("GET", target, nil), &visitor{}); err == nil || w.writes > 3 {
			t.Errorf("%s: error %v after %d writes, want an error after at most 3", target, err, w.writes)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.Serve(httptest.NewRecorder(), httptest.NewRequest("GET", "/.api/search/stream?q=slow",
		nil).WithContext(ctx), &visitor{}); !fault.Is(err, fault.Cancelled) {
		t.Errorf("cancelled search: error %v, want one of kind cancelled", err)
	}
}

// stuck is a connection whose client has stopped reading.
type stuck struct {
	*httptest.ResponseRecorder
	writes int
}

func (w *stuck) Write(p []byte) (int, error) {
	w.writes++
	return 0, os.ErrDeadlineExceeded
}
