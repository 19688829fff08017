package remote_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/control"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
	"github.com/packhorse-git/packhorse/internal/search"
	"github.com/packhorse-git/packhorse/internal/search/query"
	"github.com/packhorse-git/packhorse/internal/search/remote"
	"github.com/packhorse-git/packhorse/internal/search/schema"
	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// index is a control.Index that finds one result in each repository that may be searched.
type index struct {
	mu      sync.Mutex
	paths   []git.RepoPath
	lists   int // times that they were asked for
	last    search.Request
	fail    error
	summary search.Summary
}

func (x *index) Searched() []git.RepoPath {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lists++
	return append([]git.RepoPath(nil), x.paths...)
}

func (x *index) Search(ctx context.Context, request search.Request, sink search.Sink) (search.Summary, error) {
	x.mu.Lock()
	x.last = request
	paths, fail, summary := x.paths, x.fail, x.summary
	x.mu.Unlock()
	inflight.From(ctx).AddUsage(inflight.Usage{Commands: 1, User: time.Second})
	for _, path := range paths {
		if !mayRead(request.May, path) {
			continue
		}
		if err := sink.Matches(search.Batch{JSON: fmt.Appendf(nil, "%q", path), Results: 1, Matches: 2}); err != nil {
			return search.Summary{}, err
		}
		if err := sink.Progress(search.Summary{Results: 1}); err != nil {
			return search.Summary{}, err
		}
	}
	return summary, fail
}

func mayRead(readable search.Readable, path git.RepoPath) bool {
	if readable == nil {
		return true
	}
	may, _ := readable([]git.RepoPath{path})
	return may[0]
}

func (x *index) Refresh(context.Context) error { return nil }

func (x *index) Status(may search.Readable) search.Status {
	n := 0
	for _, path := range x.paths {
		if mayRead(may, path) {
			n++
		}
	}
	return search.Status{
		Searching: true, Repositories: n, Jobs: []search.Job{{Repository: "a", Files: 7}, {Repository: "b"}},
		Failures: []search.IndexFailure{{Repository: "b", Error: "why"}, {Repository: "a", Error: "no"}},
	}
}

// world is an index behind a port, and a gateway's view of it.
type world struct {
	t       *testing.T
	index   *index
	address string
	x       *remote.Index
	close   func()
}

func newWorld(t *testing.T, paths ...string) *world {
	t.Helper()
	w := &world{t: t, index: &index{summary: search.Summary{Results: 3}}}
	w.set(paths...)
	server := control.New(control.Options{
		Index: w.index, Pump: bulk.NewPump(bulk.PumpOptions{}), Lanes: admit.NewLanes(admit.Sizes{Small: 10, Pages: 10}),
		Board: inflight.NewBoard(),
		Log:   slog.New(slog.DiscardHandler), Ready: func() error { return nil },
	}).HTTPServer()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	w.close = func() { _ = server.Close() }
	t.Cleanup(w.close)
	w.address = listener.Addr().String()
	w.x = w.another()
	return w
}

// another is the view of another gateway.
func (w *world) another() *remote.Index {
	c, err := client.New(w.address, client.Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return remote.NewIndex(c)
}

func (w *world) set(paths ...string) {
	w.index.mu.Lock()
	defer w.index.mu.Unlock()
	w.index.paths = nil
	for _, name := range paths {
		path, err := git.ParseRepoPath(name)
		if err != nil {
			w.t.Fatal(err)
		}
		w.index.paths = append(w.index.paths, path)
	}
}

// kept is a search.Sink.
type kept struct {
	json     []string
	progress int
	fail     error
}

func (k *kept) Matches(b search.Batch) error {
	k.json = append(k.json, fmt.Sprintf("%s %d %d", b.JSON, b.Results, b.Matches))
	return k.fail
}

func (k *kept) Progress(search.Summary) error { k.progress++; return nil }

func (w *world) search(text string, may search.Readable, sink *kept) (search.Summary, error) {
	w.t.Helper()
	q, err := query.Parse(text)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.x.Search(w.t.Context(), search.Request{Query: q, Format: schema.StreamChunks, May: may, Limit: 7,
		Timeout: 3 * time.Second}, sink)
}

func TestSearchElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "b", "a")
	w.index.summary = search.Summary{
		Results: 2, Matches: 4, Limited: true, TimedOut: true, Elapsed: time.Second, Index: time.Millisecond,
		Link: time.Microsecond, Searched: 5, Unindexed: []string{"u"}, Missing: []string{"m"},
		Repositories: []search.Freshness{{Repository: "a", Indexed: "1", Current: "2", Lag: -1, Branch: "main",
			Error: "why"}},
	}
	var sink kept
	summary, err := w.search(`needle "with space" repo:x count:3`, nil, &sink)
	want := w.index.summary
	want.Done = true
	if err != nil || !reflect.DeepEqual(summary, want) {
		t.Errorf("%+v, %v, want %+v", summary, err, want)
	}
	if got := strings.Join(sink.json, ", "); got != `"b" 1 2, "a" 1 2` || sink.progress != 2 {
		t.Errorf("%s and %d", got, sink.progress)
	}
	asked := w.index.last
	if asked.Format != schema.StreamChunks || asked.May != nil || asked.Limit != 0 || asked.Timeout != 3*time.Second ||
		asked.Query.Count != 3 {
		t.Errorf("asked for %+v", asked)
	}
	if q, err := query.Parse("needle count:all timeout:5s"); err != nil {
		t.Error(err)
	} else { // the caller has parsed it
		q.Count, q.Timeout = 0, 0
		_, err := w.x.Search(t.Context(), search.Request{Query: q, Limit: 9, Timeout: time.Second}, &sink)
		if asked = w.index.last; err != nil || asked.Limit != 9 || asked.Query.Count != 0 || asked.Timeout != time.Second ||
			asked.Query.Timeout != 0 {
			t.Errorf("asked for %+v, %v", asked, err)
		}
	}
	ctx, request := inflight.NewBoard().Begin(t.Context(), "search", "")
	defer request.End()
	for _, fail := range []error{nil, fault.New(fault.Unavailable, "no")} { // what git has used for it there
		w.index.mu.Lock()
		w.index.fail = fail
		w.index.mu.Unlock()
		_, err = w.x.Search(ctx, search.Request{Query: &query.Query{Text: "needle"}, Limit: 9}, &sink)
		if (err == nil) != (fail == nil) {
			t.Error(err)
		}
	}
	if u := request.Usage(); u.Commands != 2 || u.User != 2*time.Second {
		t.Errorf("git has used %+v", u)
	}
	if w.index.lists != 0 {
		t.Error("the list was asked for where all may be read")
	}
}

var none = search.Each(func(git.RepoPath) bool { return false })

func TestOnlyReadableRepositories(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 2000 {
		names = append(names, fmt.Sprintf("team/r%04d", i))
	}
	w := newWorld(t, names...)
	find := func(may search.Readable) string {
		t.Helper()
		var sink kept
		if _, err := w.search("x", may, &sink); err != nil {
			t.Fatal(err)
		}
		return strings.Join(sink.json, ", ")
	}
	one := search.Each(func(p git.RepoPath) bool { return p.String() == "team/r0009" || p.String() == "team/new" })
	if got := find(one); got != `"team/r0009" 1 2` {
		t.Errorf("found %s", got)
	}
	if got := find(none); got != "" {
		t.Errorf("found %s", got)
	}
	if s, err := w.search("x", func(p []git.RepoPath) ([]bool, bool) { return make([]bool, len(p)), false },
		&kept{}); err != nil || !s.TimedOut {
		t.Errorf("where it is not known what may be read: %+v, %v", s, err)
	}
	w.set(append([]string{"another", "team/new"}, names...)...) // the bits mean what they meant in the list
	for got := ""; got != `"team/new" 1 2, "team/r0009" 1 2`; {
		if got = find(one); got != `"team/r0009" 1 2` && got != `"team/new" 1 2, "team/r0009" 1 2` {
			t.Fatalf("found %s", got)
		}
	}
	for i := range 40 { // more than are kept: another gateway
		w.set(append(names, fmt.Sprint("z", i))...)
		other := w.another()
		n := 0
		if err := other.Repositories(t.Context(), func(git.RepoPath) error { n++; return nil }); err != nil || n != 2001 {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if got := find(one); got != `"team/r0009" 1 2` {
		t.Errorf("with a list that is forgotten: %s", got)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	enough := errors.New("enough")
	if _, err := w.search("x", nil, &kept{fail: enough}); !errors.Is(err, enough) {
		t.Errorf("a sink that fails: %v", err)
	}
	w.index.fail = fault.Retry(fault.Unavailable, 2*time.Second, "no search process runs")
	if _, err := w.search("x", nil, &kept{}); !fault.Is(err, fault.Unavailable) ||
		fault.RetryAfter(err) != 2*time.Second || !strings.Contains(err.Error(), "no search process") ||
		errors.Unwrap(err) != nil {
		t.Errorf("the index fails: %v", err)
	}
	w.index.fail = fault.New(fault.NotFound, "of its own")
	if _, err := w.search("x", none, &kept{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("the index fails: %v", err)
	}
	if s := w.x.Status(nil); !s.Searching || s.Repositories != 1 || len(s.Jobs) != 2 || len(s.Failures) != 2 {
		t.Errorf("status %+v", s)
	}
	if s := w.x.Status(search.Each(func(p git.RepoPath) bool { return p.String() == "a" })); len(s.Jobs) != 1 ||
		s.Jobs[0].Files != 7 || len(s.Failures) != 1 || s.Failures[0].Error != "no" {
		t.Errorf("status for somebody %+v", s)
	}
	if s := w.x.Status(search.Each(func(p git.RepoPath) bool { return p.String() != "a" })); !s.Searching ||
		s.Repositories != 0 || len(s.Jobs) != 1 {
		t.Errorf("status for who may not know of any: %+v", s)
	}
	w.close()
	if s := w.x.Status(nil); s.Searching || !strings.Contains(s.Error, "cannot reach") || s.Jobs == nil {
		t.Errorf("status of nobody %+v", s)
	}
	for _, may := range []search.Readable{nil, none} {
		if _, err := w.search("x", may, &kept{}); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 ||
			!strings.Contains(err.Error(), "cannot reach the search process") {
			t.Errorf("nobody is there: %v", err)
		}
	}
}
