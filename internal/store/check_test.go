package store

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/hydrate"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// acquire returns the place of a path, which is released at the end of the test.
func acquire(t *testing.T, s *Store, path string) *place {
	t.Helper()
	p, err := s.Acquire(t.Context(), repoPath(path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Release)
	return p.(*place)
}

// newPlace returns a new store with the repository x, its only node, and the place of x there.
func newPlace(t *testing.T, change ...func(*Options)) (*buckettest.Memory, *Store, *place) {
	t.Helper()
	b := newBucket(t)
	s := newNode(t, b, change...)
	create(t, s, "x")
	return b, s, acquire(t, s, "x")
}

func TestBurstSharesChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, s, p := newPlace(t)
		time.Sleep(time.Second) // the event of the new repository is published
		before := b.Requests()["get"]
		b.SetFaults(buckettest.Faults{Latency: 20 * time.Millisecond})
		var callers sync.WaitGroup
		for range 1000 {
			callers.Go(func() {
				if _, err := p.Layers(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		if n := b.Requests()["get"] - before; n > 2 {
			t.Errorf("%d GETs for a burst of 1,000 requests, want at most 2", n)
		}
		if n := testutil.ToFloat64(s.metrics.checks.WithLabelValues("joined")); n < 998 {
			t.Errorf("%v joined checks, want at least 998", n)
		}
	})
}

func TestSlowGetIsSentTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _, p := newPlace(t)
		synctest.Wait() // the event of the creation is published
		var gets atomic.Int32
		b.SetHook(func(operation, key string) error {
			if operation == "get" && strings.HasPrefix(key, "repos/") && strings.Contains(key, "/log/") && gets.Add(1) == 1 {
				time.Sleep(time.Minute)
			}
			return nil
		})
		start := time.Now()
		_, err := p.Layers(t.Context())
		if took := time.Since(start); err != nil || took != hedgeDelay {
			t.Errorf("Layers took %v, %v, want %v", took, err, hedgeDelay)
		}
		time.Sleep(time.Minute)
	})
}

func TestStoreIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, s, p := newPlace(t)
		b.SetFaults(buckettest.Faults{Down: true})
		if _, err := p.Layers(t.Context()); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) <= 0 {
			t.Errorf("Layers = %v with retry after %v, want unavailable", err, fault.RetryAfter(err))
		}
		if p.Known() == nil {
			t.Error("Known = nil, want the latest known refs")
		}
		if _, err := s.Acquire(t.Context(), repoPath("y")); !fault.Is(err, fault.Unavailable) {
			t.Errorf("Acquire of an unknown path = %v, want unavailable", err)
		}
		synctest.Wait()
		if err := s.Ready(); err == nil {
			t.Error("Ready = nil, want an error soon after a failed request")
		}
		time.Sleep(5 * time.Minute)
		b.SetFaults(buckettest.Faults{})
		if _, err := p.Layers(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * downInterval)
		if err := s.Ready(); err != nil {
			t.Errorf("Ready = %v, want nil after the outage", err)
		}
	})
}

func TestStoreDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _, p := newPlace(t)
		end := make(chan struct{})
		b.SetHook(func(operation, key string) error { <-end; return nil })
		t.Cleanup(func() { close(end) })
		for _, want := range []time.Duration{requestTimeout, downTimeout} {
			start := time.Now()
			_, err := p.Layers(t.Context())
			if took := time.Since(start); !fault.Is(err, fault.Unavailable) || took != want {
				t.Errorf("Layers took %v, %v, want unavailable after %v", took, err, want)
			}
			time.Sleep(2 * requestTimeout) // the monitor notices it, too
		}
	})
}

func TestStaleIfError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, s, p := newPlace(t, func(o *Options) { o.StaleIfError = 5 * time.Minute })
		want, err := p.Layers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.SetFaults(buckettest.Faults{Down: true})
		time.Sleep(5*time.Minute - time.Second)
		if got, err := p.Layers(t.Context()); err != nil || got != want {
			t.Errorf("Layers during an outage = %v, %v, want the latest known ones", got, err)
		}
		if n := testutil.ToFloat64(s.metrics.stale); n != 1 {
			t.Errorf("%v stale answers, want 1", n)
		}
		time.Sleep(2 * time.Second)
		if _, err := p.Layers(t.Context()); !fault.Is(err, fault.Unavailable) {
			t.Errorf("Layers after five minutes = %v, want unavailable", err)
		}
	})
}

func TestMaxStaleness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		a := newNode(t, b)
		s := newNode(t, b, func(o *Options) { o.MaxStaleness = 2 * time.Second })
		create(t, a, "x")
		p := acquire(t, s, "x")
		if _, err := p.Layers(t.Context()); err != nil {
			t.Fatal(err)
		}
		n := setRef(t, a, "x", "refs/heads/main", id1)
		changed := time.Now()
		b.SetFaults(buckettest.Faults{Latency: 10 * time.Millisecond})
		var seen time.Time
		for range 30 {
			start := time.Now()
			layers, err := p.Layers(t.Context())
			if err != nil || time.Since(start) != 0 {
				t.Errorf("Layers took %v, %v, want no wait", time.Since(start), err)
			}
			if layers.Number == n && seen.IsZero() {
				seen = time.Now()
			}
			time.Sleep(100 * time.Millisecond)
		}
		if age := seen.Sub(changed); seen.IsZero() || age > 2*time.Second {
			t.Errorf("the change was visible after %v, want at most 2 s", age)
		}
		time.Sleep(time.Minute) // no request, no check
		setRef(t, a, "x", "refs/heads/main", id2)
		if got := refOf(t, s, "x", "refs/heads/main"); got != id2 {
			t.Errorf("ref after a pause = %v, want %v", got, id2)
		}
	})
}

// The local copy is as old as the last check, even if a record was written to it later.
func TestRecordIsNotACheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, s, p := newPlace(t)
		want := time.Now()
		time.Sleep(checkedInterval / 2)
		setRef(t, newNode(t, b), "x", "refs/heads/main", id1)
		if _, err := p.Layers(t.Context()); err != nil {
			t.Fatal(err)
		}
		local := s.cache.Repository(p.ID())
		if got, err := local.Checked(); err != nil || !got.Equal(want) {
			t.Errorf("Checked() = %v, %v after another record, want %v", got, err, want)
		}
		time.Sleep(checkedInterval)
		want = time.Now()
		if _, err := p.Layers(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, err := local.Checked(); err != nil || !got.Equal(want) {
			t.Errorf("Checked() = %v, %v after another check, want %v", got, err, want)
		}
	})
}

func TestBrokenPromise(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		s := newNode(t, b)
		id := create(t, s, "x")
		p := acquire(t, s, "x")
		number := setRef(t, s, "x", "refs/heads/main", id1)
		r := s.acquire(id)
		defer s.release(r)
		rogue := r.known().record.Next(replog.KindPush, "m", time.Now())
		rogue.Parent = replog.NewID()
		body, err := rogue.Encode()
		if err != nil {
			t.Fatal(err)
		}
		b.Set(r.log.Key(rogue.Number), body)
		checked := time.Now()
		time.Sleep(2 * checkedInterval)
		for range 2 {
			if layers, err := p.Layers(t.Context()); err != nil || layers.Number != number {
				t.Errorf("Layers = %v, %v, want the last certain state", layers, err)
			}
		}
		if got, err := r.local.Checked(); err != nil || !got.Equal(checked) {
			t.Errorf("Checked() = %v, %v, want %v: the last state was not confirmed", got, err, checked)
		}
		if _, err := p.SetHead(t.Context(), "refs/heads/x", nil); !fault.Is(err, fault.Corrupt) {
			t.Errorf("SetHead = %v, want corrupt", err)
		}
		if n := testutil.ToFloat64(s.metrics.broken); n != 1 {
			t.Errorf("%v broken promises, want 1", n)
		}
	})
}

// A backup of the bucket was restored while this node was stopped, or at work.
func TestBucketIsOlder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		isRestart bool
		others    int // records that another node has appended since
	}{
		{"restart", true, 0}, {"restart, same number", true, 1}, {"restart, later number", true, 2}, {"running", false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { checkBucketIsOlder(t, test.isRestart, test.others) })
		})
	}
}

func checkBucketIsOlder(t *testing.T, isRestart bool, others int) {
	b := newBucket(t)
	root := func(o *Options) { o.Cache.Root = t.TempDir() }
	if isRestart {
		dir := t.TempDir()
		root = func(o *Options) { o.Cache.Root = dir }
	}
	s := newNode(t, b, root)
	id := create(t, s, "x")
	number := setRef(t, s, "x", "refs/heads/main", id1)
	key := replog.Open(b, id).Key(number)
	if err := b.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	other := newNode(t, b)
	for range others {
		setRef(t, other, "x", "refs/heads/other", id2)
	}
	if isRestart {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = newNode(t, b, root)
	} else {
		time.Sleep(2 * confirmInterval)
	}
	before := len(repositoryKeys(b))
	p := acquire(t, s, "x")
	if _, err := p.Push(t.Context()); !fault.Is(err, fault.Corrupt) || !mentions(err, "log/", "read-only") {
		t.Errorf("Push = %v, want corrupt with a key", err)
	}
	for range 2 {
		if layers, err := p.Layers(t.Context()); err != nil || layers.Number != number {
			t.Errorf("Layers = %v, %v, want the last certain state", layers, err)
		}
	}
	if _, err := p.SetHead(t.Context(), "refs/heads/x", nil); !fault.Is(err, fault.Corrupt) {
		t.Errorf("SetHead = %v, want corrupt", err)
	}
	if got := len(repositoryKeys(b)); got != before {
		t.Errorf("the bucket has %d objects, want %d as before", got, before)
	}
	if n := testutil.ToFloat64(s.metrics.broken); n != 1 {
		t.Errorf("%v broken promises, want 1", n)
	}
}

func TestRestartNeedsTwoRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		a := newNode(t, b)
		id := create(t, a, "x")
		synctest.Wait() // the event of the creation is published
		root := t.TempDir()
		var gets, lists atomic.Int32 // of the repository; the node also looks for events and purges
		b.SetHook(func(operation, key string) error {
			switch {
			case !strings.HasPrefix(key, "repos/"):
			case operation == "get":
				gets.Add(1)
			case operation == "list":
				lists.Add(1)
			}
			return nil
		})
		for want := range 2 {
			s, err := open(Options{Bucket: b, URL: "s3://test/store", Node: "n", Cache: hydrate.Options{Root: root}},
				a.identity, nil)
			if err != nil {
				t.Fatal(err)
			}
			r := s.acquire(id)
			gets.Store(0)
			lists.Store(0)
			if _, err := r.current(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := int(lists.Load()); n != 1-want {
				t.Errorf("start %d: %d listings, want %d", want+1, n, 1-want)
			}
			if n := gets.Load(); n != 2 { // the next record, and the head
				t.Errorf("start %d: %d GETs, want 2", want+1, n)
			}
			s.release(r)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestIdleRepositoriesAreBounded(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	s := newNode(t, b, func(o *Options) { o.MaxIdle = 2 })
	ids := map[string]string{}
	var records []weak.Pointer[replog.Record]
	for _, path := range []string{"a", "b", "c", "d"} {
		ids[path] = create(t, s, path)
		r := s.acquire(ids[path])
		records = append(records, weak.Make(r.known().record))
		s.release(r)
	}
	if n := len(s.known.byID); n > 2 {
		t.Errorf("%d repositories in memory, want at most 2", n)
	}
	inMemory := func() (n int) {
		runtime.GC()
		for _, record := range records {
			if record.Value() != nil {
				n++
			}
		}
		return n
	}
	if !gittest.Eventually(func() bool { return inMemory() <= 2 }) {
		t.Errorf("%d records in memory, want at most 2", inMemory())
	}
	for path, want := range ids {
		if got := idOf(t, s, path); got != want {
			t.Errorf("%s has the repository %q, want %q", path, got, want)
		}
	}
}

func TestHint(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		a, s := newNode(t, b), newNode(t, b)
		create(t, a, "x")
		p := acquire(t, s, "x")
		n := setRef(t, a, "x", "refs/heads/main", id1)
		var changed []git.RepoPath
		s.OnChange(func(p git.RepoPath) { changed = append(changed, p) })
		if !s.Hint(repoPath("x"), n) {
			t.Error("Hint = false, want true: a repository without packs is complete")
		}
		synctest.Wait()
		if len(changed) != 1 || changed[0] != repoPath("x") {
			t.Errorf("changed paths %v, want x", changed)
		}
		if got := p.Known().Number; got != n {
			t.Errorf("after the hint, record %d is known, want %d", got, n)
		}
		before := b.Requests()["get"]
		s.Hint(repoPath("x"), n)
		synctest.Wait()
		if got := b.Requests()["get"]; got != before {
			t.Errorf("%d GETs after a hint about what is known, want none", got-before)
		}
	})
}

func TestRequestsTraceTheirChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, _, p := newPlace(t, func(o *Options) { o.StaleIfError = time.Hour })
		b.SetFaults(buckettest.Faults{Latency: 7 * time.Millisecond})
		var marked time.Duration
		ctx, trace := node.WithStoreTrace(t.Context(), func(age time.Duration) { marked = age })
		for range 2 {
			if _, err := p.Layers(ctx); err != nil {
				t.Fatal(err)
			}
		}
		var o node.Outcome
		trace.Fill(&o)
		if o.Stored.Record != 1 || o.Stored.Check != 14*time.Millisecond || o.Stale != 0 || marked != 0 {
			t.Errorf("outcome %+v, stale %v, want record 1, 14 ms and no staleness", o.Stored, marked)
		}
		time.Sleep(time.Minute)
		b.SetFaults(buckettest.Faults{Down: true})
		if _, err := p.Layers(ctx); err != nil {
			t.Fatal(err)
		}
		trace.Fill(&o)
		if o.Stale < time.Minute || marked != o.Stale {
			t.Errorf("stale %v, marked %v, want a minute", o.Stale, marked)
		}
	})
}

// A record with impossible sizes is damage of one repository: the node serves the others.
func TestImpossibleSizes(t *testing.T) {
	t.Parallel()
	const huge = `"bytes":4611686018427387904,` // 2^62
	sum := strings.Repeat("0", 64)
	for name, test := range map[string]struct {
		packs       int
		size, added string // of each pack, and to the record
	}{
		"checkpoint": {0, "", `"refs":{"bytes":9223372036854775807,"checkpoint":"refs/2-x","count":1,"sha256":"` + sum +
			`"},`},
		"packs whose sum is 0":        {4, huge, ""},
		"packs whose sum is negative": {2, huge, `"bytes":-9223372036854775808,`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBucket(t)
			s := newNode(t, b)
			id := create(t, s, "x")
			create(t, s, "y")
			log := replog.Open(b, id)
			head, err := log.Head(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			next := head.Next(replog.KindPush, "m", time.Now())
			for range test.packs {
				next.Packs = append(next.Packs, replog.Pack{Key: replog.PackKey("pack-1", replog.NewID()), Since: next.Number})
			}
			body, err := next.Encode()
			if err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(string(body), `{"bytes":0,`, `{`+test.size)
			b.Set(log.Key(next.Number), []byte(strings.Replace(text, "{", "{"+test.added, 1)))
			for _, n := range []*Store{s, newNode(t, b)} {
				p, err := n.Acquire(t.Context(), repoPath("x"))
				if err == nil {
					_, err = p.(*place).Layers(t.Context())
					p.Release()
				}
				if !fault.Is(err, fault.Corrupt) || !mentions(err, log.Key(next.Number)) {
					t.Errorf("Layers of x: %v, want corrupt with the key of the record", err)
				}
				if _, err := acquire(t, n, "y").Layers(t.Context()); err != nil {
					t.Errorf("Layers of y: %v, want no error", err)
				}
			}
		})
	}
}
