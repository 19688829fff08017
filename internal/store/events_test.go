package store

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node/event"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// readEvents reads all events after a position in pages.
func readEvents(t *testing.T, s *Store, after string, page int) (all []event.Event) {
	t.Helper()
	for {
		list, next, err := s.Events().Read(t.Context(), after, page)
		if err != nil {
			t.Fatalf("Read(%q): %v", after, err)
		}
		if len(list) == 0 {
			return all
		}
		all, after = append(all, list...), next
	}
}

// repositoryKeys returns the keys in a bucket, without those of the event log, which change in the background.
func repositoryKeys(b *buckettest.Memory) []string {
	return slices.DeleteFunc(b.Keys(), func(key string) bool { return strings.HasPrefix(key, eventsPrefix) })
}

// textOf returns events as text.
func textOf(all []event.Event) string {
	var lines []string
	for _, e := range all {
		text := fmt.Sprintf("%s %s", e.Kind, e.Repository)
		if e.Former != "" {
			text += " from " + string(e.Former)
		}
		if e.Actor != "" {
			text += " by " + string(e.Actor)
		}
		for _, r := range e.Refs {
			text += fmt.Sprintf(" %s:%s", r.Name, r.Kind)
		}
		lines = append(lines, text)
	}
	return strings.Join(lines, ", ")
}

// pushTo sets the path of a push.
func pushTo(path string) func(*receivepack.Proposal) {
	return func(p *receivepack.Proposal) { p.Push.Repo = repoPath(path) }
}

func TestEvents(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newNode(t, b), newNode(t, b)
	_, start, err := c.Events().Read(t.Context(), event.Now, 1)
	if err != nil {
		t.Fatal(err)
	}
	create(t, a, "x")
	u := update("m", 0, 1)
	u.Kind = receivepack.Created
	if _, err := newPusher(t, c, "x").push(pushTo("x"), u); err != nil {
		t.Fatal(err)
	}
	if err := a.Rename(t.Context(), repoPath("x"), repoPath("y")); err != nil {
		t.Fatal(err)
	}
	p := acquire(t, c, "y")
	if _, err := p.SetHead(t.Context(), "refs/heads/other", nil); err != nil {
		t.Fatal(err)
	}
	if err := a.Create(t.Context(), repoPath("y"), 0, "refs/heads/main", "", nil); !fault.Is(err, fault.Exists) {
		t.Errorf("Create of a path that is taken: %v", err)
	}
	if err := c.Delete(t.Context(), repoPath("y"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want := "create x, push x refs/heads/m:created, rename y from x, configure y, delete y"
	for _, s := range []*Store{a, c, newNode(t, b)} {
		all := readEvents(t, s, start, 2)
		if got := textOf(all); got != want {
			t.Errorf("events: %s, want %s", got, want)
		}
		if got := readEvents(t, s, "", 100); textOf(got) != want || got[4].Position != all[4].Position {
			t.Errorf("events from the beginning: %s", textOf(got))
		}
		if got := textOf(readEvents(t, s, all[2].Position, 1)); got != "configure y, delete y" {
			t.Errorf("events after the third one: %s", got)
		}
	}
	id := a.StoreID()
	for after, kind := range map[string]fault.Kind{"x": fault.Invalid, id + "-1": fault.Invalid,
		id + "-0-0": fault.OutOfRange, "other-1-0": fault.OutOfRange, id + "-99-0": fault.OutOfRange} {
		if _, _, err := a.Events().Read(t.Context(), after, 1); !fault.Is(err, kind) {
			t.Errorf("Read(%q): %v, want %v", after, err, kind)
		}
	}
	create(t, a, "z")
	readEvents(t, a, "", 100)
	if err := a.events.log.removeOld(t.Context(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := newNode(t, b).Events().Read(t.Context(), start, 1); !fault.Is(err, fault.OutOfRange) {
		t.Errorf("Read of a removed batch: %v", err)
	}
}

// A push of many refs has all of them in its event.
func TestLargeEvents(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	s := newNode(t, b)
	create(t, s, "x")
	var updates []receivepack.Update
	for i := range 3000 {
		updates = append(updates, update(fmt.Sprintf("%s-%d", strings.Repeat("n", 100), i), 0, 1))
	}
	if _, err := newPusher(t, s, "x").push(pushTo("x"), updates...); err != nil {
		t.Fatal(err)
	}
	all := readEvents(t, newNode(t, b), "", 10)
	if len(all) != 2 || len(all[1].Refs) != len(updates) {
		t.Errorf("%d events, want 2, and %d refs", len(all), len(updates))
	}
}

// recorded returns the events of all records, by repository. Those of a repository that never had its path are left
// out.
func recorded(t *testing.T, b *buckettest.Memory) map[string][]string {
	t.Helper()
	logs := make(map[string][]*replog.Record)
	err := bucket.Each(t.Context(), b, reposPrefix, func(info bucket.Info) error {
		id, rest, _ := strings.Cut(strings.TrimPrefix(info.Key, reposPrefix), "/")
		if strings.HasPrefix(rest, "log/") {
			body, _, err := b.Get(t.Context(), info.Key, replog.MaxRecord)
			if err != nil {
				return err
			}
			r, err := replog.Decode(body)
			logs[id] = append(logs[id], r)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string][]string)
	named := newNode(t, b)
	for id, list := range logs {
		slices.SortFunc(list, func(x, y *replog.Record) int { return cmp.Compare(x.Number, y.Number) })
		if last := list[len(list)-1]; last.Deleted && last.Events == nil ||
			len(list) == 1 && idOf(t, named, list[0].Names[0].String()) != id {
			continue
		}
		for _, r := range list {
			for _, e := range r.EventList() {
				all[id] = append(all[id], e.ID)
			}
		}
	}
	return all
}

// Nodes change repositories at the same time, the bucket loses answers, and nodes are lost at any moment. In the end
// each event of a record was published once, in the order of the repository, and all nodes read the same.
func TestEventsOfLostNodes(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	b := newBucket(t)
	first := newNode(t, b)
	for i := range 3 {
		create(t, first, fmt.Sprint("r", i))
	}
	faults := buckettest.Faults{LostRequests: 0.02, LostAnswers: 0.02, LateWrites: 0.02, DoubledWrites: 0.02,
		FailedReads: 0.01}
	for range 6 {
		var nodes []*Store
		var running sync.WaitGroup
		for range 3 {
			s := newNode(t, b)
			s.failPoint = func(string) error { return s.ctx.Err() }
			nodes = append(nodes, s)
		}
		for n, s := range nodes {
			of := rand.New(rand.NewPCG(random.Uint64(), uint64(n)))
			running.Go(func() {
				for s.ctx.Err() == nil {
					changeSomething(s, of)
				}
			})
		}
		b.SetFaults(faults)
		for _, s := range nodes {
			time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond)
			s.cancel() // nothing of its memory is written any more
		}
		running.Wait()
		for _, s := range nodes {
			s.running.Wait()
		}
		b.SetFaults(buckettest.Faults{})
	}
	b.Settle()
	want := recorded(t, b)
	var texts []string
	for range 2 {
		got := make(map[string][]string)
		text := ""
		for _, e := range readEvents(t, newNode(t, b), "", 7) {
			got[e.Incarnation] = append(got[e.Incarnation], e.ID)
			text += e.Position + " " + e.ID + "\n"
		}
		texts = append(texts, text)
		for _, id := range slices.Sorted(maps.Keys(want)) {
			if !slices.Equal(got[id], want[id]) {
				t.Errorf("repository %s: events\n%v, want\n%v", id, got[id], want[id])
			}
			delete(got, id)
		}
		if len(got) > 0 {
			t.Errorf("events of other repositories: %v", got)
		}
	}
	if texts[0] != texts[1] {
		t.Errorf("two nodes read different events:\n%s\n%s", texts[0], texts[1])
	}
	n := 0
	for _, list := range want {
		n += len(list)
	}
	t.Logf("%d events of %d repositories", n, len(want))
}

// changeSomething makes a random change, which may fail.
func changeSomething(s *Store, random *rand.Rand) {
	path := repoPath(fmt.Sprint("r", random.IntN(4)))
	switch random.IntN(40) {
	case 0:
		_ = s.Delete(s.ctx, path, places.DeleteOptions{})
		return
	case 1:
		_ = s.Rename(s.ctx, path, repoPath(fmt.Sprint("r", random.IntN(4))))
		return
	case 2, 3, 4, 5, 6:
		_ = s.Create(s.ctx, path, 0, "refs/heads/main", "", nil)
		return
	}
	found, err := s.Acquire(s.ctx, path)
	if err != nil {
		return
	}
	defer found.Release()
	p := found.(*place)
	state, err := p.current(s.ctx)
	if err != nil || !state.has(path) {
		return
	}
	shadow := &shadow{place: p, base: state, ctx: s.ctx, cancel: func() {}, done: func() {}}
	proposals := make([]receivepack.Proposal, 1+random.IntN(3))
	for i := range proposals {
		proposals[i] = receivepack.Proposal{Push: &receivepack.Push{ID: replog.NewID(), Repo: path},
			Updates: []receivepack.Update{update(replog.NewID(), 0, 1)}}
	}
	shadow.Commit(s.ctx, proposals)
}

// A repository that cannot be read stops neither events and lists of others, nor their purges and ends of lifetimes.
func TestOneBadRepository(t *testing.T) {
	t.Parallel()
	for what, body := range map[string]string{"damaged": "x", "newer": `{"format":99}`} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newBucket(t)
			a, c := newNode(t, b), newNode(t, b)
			spoil := func(path string) (id string) {
				t.Helper()
				id = idOf(t, a, path)
				b.Set(replog.Open(b, id).Key(2), []byte(body))
				return id
			}
			create(t, a, "x")
			create(t, a, "y")
			checkList(t, c, "x", "y")
			bad := spoil("x")
			if err := a.Rename(t.Context(), repoPath("y"), repoPath("z")); err != nil {
				t.Fatal(err)
			}
			checkList(t, c, "x", "z")
			create(t, a, "late")
			readEvents(t, a, "", 10) // its creation is published
			spoil("late")
			for _, s := range []*Store{c, newNode(t, b)} {
				checkList(t, s, "late", "x", "z")
				if got := textOf(readEvents(t, s, "", 10)); !strings.Contains(got, "rename z from y") {
					t.Errorf("events: %s", got)
				}
			}
			good := idOf(t, a, "z")
			b.Set(purgesPrefix+bad+"-"+replog.NewID(), []byte{})
			mark := purgesPrefix + good + "-" + replog.NewID()
			b.Set(mark, []byte{})
			reader := newNode(t, b)
			if _, err := reader.confirmPurges(t.Context()); err == nil ||
				!slices.Contains(b.Keys(), mark+"."+reader.options.Node) {
				t.Errorf("the purge was not confirmed; the error is %v", err)
			}
			b.Set(expiryKey(time.Now().Add(-2*time.Hour), bad), []byte{})
			b.Set(expiryKey(time.Now().Add(-time.Hour), good), []byte{})
			if err := reader.removeExpiredBy(t.Context(), time.Now()); err == nil || idOf(t, reader, "z") != "" {
				t.Errorf("the repository was not removed; the error is %v", err)
			}
		})
	}
}

// Events that are too large together are in several records and batches, which all nodes can read.
func TestEventsBeyondALimit(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	s := newNode(t, b)
	s.events.log.maxLarge = 1 << 20
	create(t, s, "x")
	b.SetHook(func(operation, key string) error { // nothing is published yet
		if operation == "create" && strings.HasPrefix(key, batchPrefix) {
			return fault.New(fault.Unavailable, "503")
		}
		return nil
	})
	p := newPusher(t, s, "x")
	pushOf := func(id string, refs int) (proposal receivepack.Proposal) {
		proposal.Push = &receivepack.Push{ID: id, Repo: repoPath("x")}
		for i := range refs {
			name := fmt.Sprintf("%s-%s-%d", id, strings.Repeat("n", 100), i)
			proposal.Updates = append(proposal.Updates, update(name, 0, 1))
		}
		return proposal
	}
	var pushes []receivepack.Proposal
	for i := range 4 {
		pushes = append(pushes, pushOf(fmt.Sprint("p", i), 4000))
	}
	shadow := &shadow{place: p.place, base: p.place.known(), ctx: t.Context(), cancel: func() {}, done: func() {}}
	for _, result := range shadow.Commit(t.Context(), pushes) {
		if result.Err != nil {
			t.Errorf("a push: %v", result.Err)
		}
	}
	shadow.base = p.place.known()
	result := shadow.Commit(t.Context(), []receivepack.Proposal{pushOf("large", 10_000)})[0]
	if !fault.Is(result.Err, fault.Invalid) {
		t.Errorf("a push that is too large: %v", result.Err)
	}
	b.SetHook(nil)
	for range 2 {
		reader := newNode(t, b)
		reader.events.log.maxLarge = 1 << 20
		if all := readEvents(t, reader, "", 10); len(all) != 5 {
			t.Errorf("%d events, want 5", len(all))
		}
	}
}

// A node that was away reads batches, and the records of several repositories, in parallel.
func TestEventsAreReadInParallel(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a := newNode(t, b)
	id := create(t, a, "x")
	for range 3 {
		readEvents(t, a, "", 100) // a batch for each change
		if _, err := acquire(t, a, "x").SetHead(t.Context(), "refs/heads/other", nil); err != nil {
			t.Fatal(err)
		}
	}
	want := len(readEvents(t, a, "", 100)) + 3
	b.SetHook(func(operation, key string) error {
		if operation == "create" && strings.HasPrefix(key, batchPrefix) {
			return bucket.ErrDenied
		}
		return nil
	})
	for _, path := range []string{"p", "q", "r"} {
		create(t, a, path)
	}
	_ = a.Close()
	b.Set(openPrefix+id+"/"+replog.NewID(), []byte(`{"from": 0, "batch": 0, "node": "lost"}`))
	head := a.events.log.head()
	var mu sync.Mutex
	waiting := [2]map[string]bool{{}, {}}
	together := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	b.SetHook(func(operation, key string) error {
		kind := 0
		number, isBatch := replog.ParseDown(strings.TrimPrefix(key, batchPrefix))
		switch {
		case operation == "get" && isBatch && number <= head:
		case operation == "get" && strings.HasPrefix(key, reposPrefix):
			kind = 1
		default:
			return nil
		}
		mu.Lock()
		isNew := !waiting[kind][key]
		if waiting[kind][key] = true; isNew && len(waiting[kind]) == 2 {
			close(together[kind])
		}
		mu.Unlock()
		select {
		case <-together[kind]:
			return nil
		case <-time.After(20 * time.Second):
			return fmt.Errorf("%s is read alone", key)
		}
	})
	reader := newNode(t, b)
	if _, _, err := reader.Events().Read(t.Context(), event.Now, 1); err != nil {
		t.Error(err)
	}
	b.SetHook(nil)
	if got := readEvents(t, reader, "", 100); len(got) != want {
		t.Errorf("%d events, want %d", len(got), want)
	}
}
