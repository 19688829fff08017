package storage_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/watch"
)

// often is the interval at which the tests have repositories checked.
const often = 5 * time.Millisecond

// testWatch is one Watch whose events the test takes one after the other.
type testWatch struct {
	t      testing.TB
	events chan watch.Event
	ended  chan error
	stop   context.CancelFunc
}

func (r *root) watch(from ...watch.From) *testWatch {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &testWatch{t: r.t, events: make(chan watch.Event), ended: make(chan error, 1), stop: cancel}
	go func() {
		w.ended <- r.Watch(ctx, from, func(e watch.Event) error {
			select {
			case w.events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	r.t.Cleanup(cancel)
	return w
}

func (w *testWatch) end() {
	w.t.Helper()
	w.stop()
	if err := <-w.ended; !errors.Is(err, context.Canceled) {
		w.t.Errorf("the watch ended with %v", err)
	}
}

// next waits for an event.
func (w *testWatch) next() watch.Event {
	w.t.Helper()
	select {
	case e := <-w.events:
		return e
	case err := <-w.ended:
		w.t.Fatalf("the watch ended: %v", err)
	case <-time.After(time.Minute):
		w.t.Fatal("no event comes")
	}
	return watch.Event{}
}

// want waits for one event with these changes, "name old new target" in any order; IDs as one letter each.
func (w *testWatch) want(ids map[git.ObjectID]string, changes ...string) watch.Event {
	w.t.Helper()
	e := w.next()
	var got []string
	for _, c := range e.Changes {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s>%s %s", c.New.Name, ids[c.Old.ID], ids[c.New.ID],
			c.New.Target)))
	}
	slices.Sort(got)
	slices.Sort(changes)
	if e.Reset || e.Gone || !slices.Equal(got, changes) {
		w.t.Errorf("%+v\nhas changes %q, want %q", e, got, changes)
	}
	return e
}

func TestWatchSeesForeignChanges(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{CheckInterval: often})
	repo := r.repo("app.git", "a")
	a := repo.ID("main")
	b := repo.Commit("b", a)
	ids := map[git.ObjectID]string{a: "a", b: "b"}
	w := r.watch(watch.From{Path: r.path("app")})
	first := w.next()
	if !first.Reset || first.Gone || first.Path != r.path("app") || len(first.Changes) > 0 {
		t.Errorf("first %+v", first)
	}
	repo.Git("update-ref", "refs/heads/x", a.String())
	second := w.want(ids, "refs/heads/x >a")
	if second.Version.Generation <= first.Version.Generation || second.Version.Incarnation != first.Version.Incarnation {
		t.Errorf("%v, then %v", first.Version, second.Version)
	}
	clone := gittest.At(t, filepath.Join(t.TempDir(), "clone"))
	gittest.Run(t, "", "", "clone", "-q", repo.Dir, clone.Dir)
	gittest.Run(t, clone.Dir, "", "fetch", "-q", repo.Dir, "+refs/heads/*:refs/remotes/o/*")
	repo.Git("update-ref", "refs/tmp/b", b.String())
	w.want(ids, "refs/tmp/b >b")
	gittest.Run(t, clone.Dir, "", "fetch", "-q", repo.Dir, "refs/tmp/b:refs/heads/b")
	gittest.Run(t, clone.Dir, "", "push", "-q", "--atomic", repo.Dir, "refs/heads/b:refs/heads/main", ":refs/heads/x",
		"refs/heads/b:refs/tags/t")
	seen := map[git.RefName]string{} // a push is not atomic on disk
	for len(seen) < 4 {
		e := w.next()
		for _, c := range e.Changes {
			seen[c.New.Name] = ids[c.Old.ID] + ">" + ids[c.New.ID]
		}
	}
	if want := (map[git.RefName]string{"HEAD": "a>b", "refs/heads/main": "a>b", "refs/heads/x": "a>",
		"refs/tags/t": ">b"}); fmt.Sprint(seen) != fmt.Sprint(want) {
		t.Errorf("a push: %v, want %v", seen, want)
	}
	repo.Git("pack-refs", "--all") // which changes nothing
	repo.Git("symbolic-ref", "HEAD", "refs/heads/other")
	w.want(ids, "HEAD b> refs/heads/other")
	repo.Git("update-ref", "refs/heads/other", a.String())
	w.want(ids, "HEAD >a refs/heads/other", "refs/heads/other >a")
	w.end()
}

func TestWatchComesAndGoes(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{CheckInterval: often, Runner: newRunner(t)})
	w := r.watch(watch.From{Path: r.path("app")}, watch.From{Path: r.path("other")})
	for range 2 {
		if e := w.next(); !e.Gone || e.Reset || e.Version.Incarnation != "" || e.Version.Epoch == 0 {
			t.Errorf("before it is there: %+v", e)
		}
	}
	r.do(r.create("app"))
	made := w.next()
	if !made.Reset || made.Gone || made.Version.Incarnation == "" {
		t.Errorf("made: %+v", made)
	}
	away := filepath.Join(r.dir, "away")
	r.do(os.Rename(filepath.Join(r.dir, "app.git"), away))
	if e := w.next(); !e.Gone {
		t.Errorf("moved away: %+v", e)
	}
	r.do(os.Rename(away, filepath.Join(r.dir, "app.git")))
	if e := w.next(); !e.Reset || e.Version.Generation < made.Version.Generation ||
		e.Version.Incarnation != made.Version.Incarnation {
		t.Errorf("moved back: %+v after %+v", e, made)
	}
	r.do(r.Delete(t.Context(), r.path("app"), places.DeleteOptions{}))
	if e := w.next(); !e.Gone {
		t.Errorf("deleted: %+v", e)
	}
	r.do(r.create("app"))
	if e := w.next(); !e.Reset || e.Version.Incarnation == made.Version.Incarnation {
		t.Errorf("made anew: %+v after %+v", e, made)
	}
	w.end()
}

// TestWatchResumes goes away and comes back with every version that was seen, and some that were not.
func TestWatchResumes(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{CheckInterval: often})
	repo := r.repo("app.git", "a")
	a := repo.ID("main")
	b := repo.Commit("b")
	ids := map[git.ObjectID]string{a: "a", b: "b"}
	path := r.path("app")
	w := r.watch(watch.From{Path: path})
	versions := []git.Version{w.next().Version}
	for _, args := range [][]string{{"refs/heads/x", a.String()}, {"refs/heads/y", a.String()},
		{"refs/heads/x", b.String()}, {"-d", "refs/heads/y"}} {
		repo.Git(append([]string{"update-ref"}, args...)...)
		versions = append(versions, w.next().Version)
	}
	w.end()
	for i, want := range [][]string{{"refs/heads/x >b"}, {"refs/heads/x a>b"}, {"refs/heads/x a>b", "refs/heads/y a>"},
		{"refs/heads/y a>"}, nil} {
		w := r.watch(watch.From{Path: path, Known: &versions[i]})
		if e := w.want(ids, want...); e.Version != versions[4] {
			t.Errorf("from %v to %v, want %v", versions[i], e.Version, versions[4])
		}
		w.end()
	}
	repo.Git("update-ref", "refs/heads/z", b.String())
	w = r.watch(watch.From{Path: path, Known: &versions[4]})
	now := w.want(ids, "refs/heads/z >b").Version
	w.end()
	for what, known := range map[string]git.Version{
		"another incarnation":    {Incarnation: "x", Epoch: now.Epoch, Generation: now.Generation},
		"an older epoch":         {Incarnation: now.Incarnation, Epoch: now.Epoch - 1, Generation: now.Generation},
		"a version never seen":   {Incarnation: now.Incarnation, Epoch: now.Epoch, Generation: now.Generation - 1000},
		"a version of tomorrow":  {Incarnation: now.Incarnation, Epoch: now.Epoch, Generation: now.Generation + 1},
		"a version of no kind":   {},
		"a version without both": {Generation: now.Generation},
	} {
		w := r.watch(watch.From{Path: path, Known: &known})
		if e := w.next(); !e.Reset || e.Version != now {
			t.Errorf("%s: %+v", what, e)
		}
		w.end()
	}
	for i := range 150 { // more than are kept
		repo.Git("update-ref", "refs/heads/many", []string{a.String(), b.String()}[i%2])
		r.RefsChanged(path)
		w := r.watch(watch.From{Path: path, Known: &now})
		if e := w.next(); e.Reset {
			if i < 50 {
				t.Errorf("after %d changes nothing of them is known", i)
			}
			return
		}
		w.end()
	}
	t.Error("150 changes are all kept")
}

// A restarted node knows nothing of earlier changes.
func TestWatchAfterARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := newRoot(t, storage.Options{Root: dir, CheckInterval: often, Epoch: 1})
	first.repo("app.git", "a")
	w := first.watch(watch.From{Path: first.path("app")})
	known := w.next().Version
	first.do(first.Close())
	if err := <-w.ended; !fault.Is(err, fault.Unavailable) {
		t.Errorf("the watch of a node that ends: %v", err)
	}
	if err := first.Watch(t.Context(), nil, nil); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a watch of a node that has ended: %v", err)
	}
	second := newRoot(t, storage.Options{Root: dir, CheckInterval: often, Epoch: 2})
	w = second.watch(watch.From{Path: second.path("app"), Known: &known})
	if e := w.next(); !e.Reset || e.Version.Epoch != 2 || e.Version.Incarnation != known.Incarnation {
		t.Errorf("%+v after %+v", e, known)
	}
	w.end()
}

// A slow reader gets a reset, not every change.
func TestSlowWatch(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{CheckInterval: often})
	repo := r.repo("app.git", "a")
	a, b := repo.ID("main").String(), repo.Commit("b").String()
	slow, quick := r.watch(watch.From{Path: r.path("app")}), r.watch(watch.From{Path: r.path("app")})
	slow.next()
	quick.next()
	change := func(n int, id string) {
		t.Helper()
		packed := "# pack-refs with: peeled fully-peeled sorted \n" // in one step, unlike git update-ref
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprintf("refs/heads/b%d", i)
		}
		slices.Sort(names)
		var records strings.Builder
		for _, name := range names {
			records.WriteString(id + " " + name + "\n")
		}
		temp := filepath.Join(repo.Dir, "packed.new")
		r.do(errors.Join(os.WriteFile(temp, []byte(packed+records.String()), 0o600),
			os.Rename(temp, filepath.Join(repo.Dir, "packed-refs"))))
	}
	const n = 6000
	for i := range 8 {
		change(n, []string{a, b}[i%2])
		if e := quick.next(); len(e.Changes) != n || e.Reset {
			t.Errorf("%d changes, reset %v", len(e.Changes), e.Reset)
		}
	}
	change(20_000, a) // too great an event for anybody
	last := quick.next()
	if !last.Reset || len(last.Changes) > 0 {
		t.Errorf("%d changes, reset %v", len(last.Changes), last.Reset)
	}
	told, reset := 0, false
	for {
		e := slow.next()
		told += len(e.Changes)
		reset = reset || e.Reset
		if e.Version == last.Version {
			break
		}
	}
	if !reset || told >= 8*n {
		t.Errorf("%d changes were kept for it, reset %v", told, reset)
	}
	slow.end()
	quick.end()
}

func TestWatchLimits(t *testing.T) {
	t.Parallel()
	r := newRoot(t, storage.Options{CheckInterval: often, MaxWatches: 2, MaxWatched: 3})
	from := func(names ...string) (all []watch.From) {
		for _, name := range names {
			all = append(all, watch.From{Path: r.path(name)})
		}
		return all
	}
	refused := func(kind fault.Kind, from []watch.From) {
		t.Helper()
		if err := r.Watch(t.Context(), from, nil); !fault.Is(err, kind) || kind == fault.Exhausted &&
			fault.RetryAfter(err) == 0 {
			t.Errorf("%v, want kind %v", err, kind)
		}
	}
	refused(fault.Invalid, make([]watch.From, watch.MaxRepositories+1))
	refused(fault.Invalid, from("a", "a"))
	refused(fault.Exhausted, from("a", "b", "c", "d"))
	one := r.watch(from("a", "b")...)
	one.next()
	one.next()
	refused(fault.Exhausted, from("c", "d"))
	two := r.watch(from("b", "c")...)
	two.next()
	two.next()
	refused(fault.Exhausted, from("a"))
	one.end()
	three := r.watch(from("d", "b")...) // ended watches leave room
	three.next()
	three.next()
	two.end()
	three.end()
}

// A repository is checked once for all its watches, and watched repositories are not closed to make room for others.
func TestWatchesShareChecks(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	r := newRoot(t, storage.Options{CheckInterval: time.Hour, MaxOpen: 2, Registerer: registry})
	var from []watch.From
	for i := range 5 {
		r.repo(fmt.Sprintf("r%d.git", i), "x")
		from = append(from, watch.From{Path: r.path(fmt.Sprintf("r%d", i))})
	}
	value := func(name string) (sum float64) {
		families, err := registry.Gather()
		r.do(err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == name {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
		return sum
	}
	var all []*testWatch
	for range 4 {
		w := r.watch(from...)
		for range from {
			w.next()
		}
		all = append(all, w)
	}
	if looks := value("packhorse_watch_checks_total"); looks != 20 { // one for each that joins
		t.Errorf("%v looks", looks)
	}
	id := gittest.At(t, filepath.Join(r.dir, "r3.git")).ID("main").String()
	gittest.At(t, filepath.Join(r.dir, "r3.git")).Git("update-ref", "refs/heads/x", id)
	r.RefsChanged(r.path("r3.git")) // by its other name
	for _, w := range all {
		if e := w.next(); e.Path != r.path("r3") || len(e.Changes) != 1 {
			t.Errorf("%+v", e)
		}
	}
	if looks := value("packhorse_watch_checks_total"); looks != 21 {
		t.Errorf("%v looks", looks)
	}
	for i := range 5 { // open still, though only two may be without being watched
		_, err := r.Resolve(t.Context(), r.path(fmt.Sprintf("r%d", i)), "main")
		r.do(err)
	}
	if watched := value("packhorse_watched_repositories"); watched != 5 {
		t.Errorf("%v repositories are watched, want 5", watched)
	}
	for _, w := range all {
		w.end()
	}
}

// A repository that cannot be read is neither gone nor empty.
func TestWatchOfDamagedRefs(t *testing.T) {
	t.Parallel()
	lines := make(logLines, 1000)
	r := newRoot(t, storage.Options{CheckInterval: often,
		Log: slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	repo := r.repo("app.git", "a")
	repo.Git("pack-refs", "--all")
	file := filepath.Join(repo.Dir, "packed-refs")
	good, err := os.ReadFile(file)
	r.do(err)
	replace := func(text []byte) {
		t.Helper()
		r.do(errors.Join(os.WriteFile(file+".new", text, 0o600), os.Rename(file+".new", file)))
	}
	replace([]byte("junk"))
	w := r.watch(watch.From{Path: r.path("app")})
	replace(good)
	if e := w.next(); !e.Reset || e.Gone {
		t.Errorf("after it is mended: %+v", e)
	}
	for len(lines) > 0 { // of the checks before
		<-lines
	}
	replace([]byte("junk"))
	for !strings.Contains(<-lines, "cannot check a watched repository") {
	} // the check must not send an event
	replace(good)
	repo.Git("update-ref", "refs/heads/x", repo.ID("main").String())
	if e := w.next(); len(e.Changes) != 1 || e.Reset || e.Gone {
		t.Errorf("after it is mended again: %+v", e)
	}
	w.end()
}
