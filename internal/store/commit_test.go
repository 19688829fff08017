package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/refs"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/bucket/buckettest"
	"github.com/packhorse-git/packhorse/internal/store/replog"
)

// objectID returns an ID that differs for each n; zero for 0.
func objectID(n int) git.ObjectID {
	id, err := git.ParseObjectID(fmt.Sprintf("%040x", n))
	if err != nil {
		panic(err)
	}
	return id
}

// update returns an update of a branch between values of objectID.
func update(branch string, before, after int) receivepack.Update {
	return receivepack.Update{Ref: git.RefName("refs/heads/" + branch), Old: objectID(before), New: objectID(after)}
}

// pusher is a node's view of a repository for pushes without Git.
type pusher struct {
	t     *testing.T
	place *place
}

func newPusher(t *testing.T, s *Store, path string) *pusher {
	t.Helper()
	p := acquire(t, s, path)
	if _, err := p.Layers(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &pusher{t, p}
}

// reasons returns the reasons against updates, separated by "|".
func reasons(refused []*receivepack.Refusal) string {
	var texts []string
	for _, r := range refused {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, "|")
}

// push commits updates as after git receive-pack in a shadow of the latest known state.
func (p *pusher) push(change func(*receivepack.Proposal),
	updates ...receivepack.Update) (receivepack.CommitResult, error) {
	return p.pushFrom(p.place.known(), change, updates...)
}

func (p *pusher) pushFrom(base *state, change func(*receivepack.Proposal), updates ...receivepack.Update) (
	receivepack.CommitResult, error) {
	s := &shadow{place: p.place, base: base, ctx: p.t.Context(), cancel: func() {}, done: func() {}}
	proposal := receivepack.Proposal{Push: &receivepack.Push{ID: "p"}, Updates: updates}
	if change != nil {
		change(&proposal)
	}
	result := s.Commit(p.t.Context(), []receivepack.Proposal{proposal})[0]
	return result, result.Err
}

// pending returns a push that waits for its record.
func (p *pusher) pending(base *state, updates ...receivepack.Update) *pendingPush {
	return &pendingPush{ctx: p.t.Context(), shadow: &shadow{place: p.place, base: base}, done: make(chan struct{}),
		Proposal: receivepack.Proposal{Push: &receivepack.Push{ID: "p"}, Updates: updates},
		peeled:   make([]git.ObjectID, len(updates))}
}

// values returns the refs of the latest known state as text: "a=1 b=2".
func (p *pusher) values() string {
	p.t.Helper()
	var all []string
	for _, c := range p.place.known().layers.Changes {
		if !c.ID.IsZero() {
			all = append(all, strings.TrimPrefix(string(c.Name), "refs/heads/")+"="+strings.TrimLeft(c.ID.String(), "0"))
		}
	}
	return strings.Join(all, " ")
}

// Each push is checked at the head: the old values, names and rules, whatever Git saw in the shadow.
func TestCommitChecks(t *testing.T) {
	t.Parallel()
	atomic := func(p *receivepack.Proposal) { p.Atomic = true }
	for _, test := range []struct {
		name    string
		change  func(*receivepack.Proposal)
		updates []receivepack.Update
		refused string
		values  string
	}{
		{"update", nil, []receivepack.Update{update("a", 1, 2)}, "", "a=2 d/e=3"},
		{"old value", nil, []receivepack.Update{update("a", 2, 3), update("b", 0, 4)}, "changed meanwhile|", "a=1 b=4 d/e=3"},
		{"atomic", atomic, []receivepack.Update{update("b", 0, 4), update("a", 2, 3)}, "atomic push failed|changed meanwhile",
			"a=1 d/e=3"},
		{"exists", nil, []receivepack.Update{update("a", 0, 5)}, "changed meanwhile", "a=1 d/e=3"},
		{"missing", nil, []receivepack.Update{update("x", 5, 0)}, "changed meanwhile", "a=1 d/e=3"},
		{"any old value", nil, []receivepack.Update{update("a", 0, 0)}, "", "d/e=3"},
		{"below", nil, []receivepack.Update{update("a/b", 0, 5)}, "reference conflict", "a=1 d/e=3"},
		{"above", nil, []receivepack.Update{update("d", 0, 5)}, "reference conflict", "a=1 d/e=3"},
		{"file to directory", nil, []receivepack.Update{update("a", 1, 0), update("a/b", 0, 5)}, "|", "a/b=5 d/e=3"},
		{"directory to file", nil, []receivepack.Update{update("d/e", 3, 0), update("d", 0, 5)}, "|", "a=1 d=5"},
		{"both new", nil, []receivepack.Update{update("n/a", 0, 5), update("n", 0, 5)}, "|reference conflict",
			"a=1 d/e=3 n/a=5"},
		{"new and deleted", nil, []receivepack.Update{update("n/a", 0, 5), update("n/a", 5, 0), update("n", 0, 5)}, "||",
			"a=1 d/e=3 n=5"},
		{"deleted and new and deleted", nil, []receivepack.Update{update("d/e", 3, 0), update("d/e", 0, 5),
			update("d/e", 5, 0), update("d", 0, 6)}, "|||", "a=1 d=6"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newNode(t, newBucket(t))
			create(t, s, "x")
			p := newPusher(t, s, "x")
			if _, err := p.push(nil, update("a", 0, 1), update("d/e", 0, 3)); err != nil {
				t.Fatal(err)
			}
			result, err := p.push(test.change, test.updates...)
			if got := reasons(result.Refused); err != nil || got != test.refused {
				t.Errorf("Commit() refused %q, %v, want %q", got, err, test.refused)
			}
			if got := p.values(); got != test.values {
				t.Errorf("refs are %q, want %q", got, test.values)
			}
		})
	}
}

// A push that ends with an error leaves nothing in the record of the others, although some of its updates were added.
func TestFailedPushInABatch(t *testing.T) {
	t.Parallel()
	s := newNode(t, newBucket(t))
	create(t, s, "x")
	p := newPusher(t, s, "x")
	if _, err := p.push(nil, update("a", 0, 1)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "packed-refs")
	text := "# pack-refs with: peeled fully-peeled sorted \n"
	for i := range 1000 { // so many that the file is mapped
		text += fmt.Sprintf("%s refs/heads/%04d\n", objectID(9), i)
	}
	write(t, path, text)
	base, err := refs.OpenBase(path, git.SHA1)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil { // reading it fails from now on
		t.Fatal(err)
	}
	known := p.place.known()
	damaged := &state{record: known.record, layers: &refs.Layers{Number: 1, Head: known.record.Head, Base: base}}
	updates := []receivepack.Update{update("a", 1, 2), update("n/a", 0, 3), update("missing", 9, 0)}
	failed, failedAtomic := p.pending(damaged, updates...), p.pending(damaged, updates...)
	failedAtomic.Atomic = true
	good := p.pending(known, update("m", 0, 5), update("n", 0, 4))
	p.place.commitBatch([]*pendingPush{failed, failedAtomic, good}, false)
	for _, f := range []*pendingPush{failed, failedAtomic} {
		if !fault.Is(f.err, fault.Corrupt) {
			t.Errorf("push with a damaged file: error %v, want corrupt", f.err)
		}
	}
	if good.err != nil || good.refused[1] != nil {
		t.Errorf("push in the same batch: refused %q, %v, want success", good.refused, good.err)
	}
	if got := p.values(); got != "a=1 m=5 n=4" {
		t.Errorf("refs are %q, want %q", got, "a=1 m=5 n=4")
	}
}

// uploaded returns a shadow whose pack was uploaded before Commit.
func (p *pusher) uploaded(b *buckettest.Memory) *shadow {
	u := &packUpload{name: "pack-1", gc: p.place.known().record.GC, done: make(chan struct{}),
		result: replog.Pack{Key: replog.PackKey("pack-1", replog.NewID())}}
	close(u.done)
	for _, ext := range []string{".pack", ".idx"} {
		b.Set("repos/"+p.place.id+"/"+u.result.Key+ext, []byte("x"))
	}
	return &shadow{place: p.place, base: p.place.known(), ctx: p.t.Context(), uploads: []*packUpload{u}}
}

// The objects of a push stay if its record may exist, and if a broken promise leaves that to an administrator.
func TestCommitKeepsUploads(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	s := newNode(t, b)
	create(t, s, "x")
	p := newPusher(t, s, "x")
	refused, broken := p.uploaded(b), p.uploaded(b)
	commit := func(s *shadow, u receivepack.Update) error {
		t.Helper()
		results := s.Commit(t.Context(), []receivepack.Proposal{{Push: &receivepack.Push{ID: "p"},
			Updates: []receivepack.Update{u}}})
		s.remove()
		return results[0].Err
	}
	if err := commit(refused, update("a", 1, 2)); err != nil {
		t.Fatal(err)
	}
	rogue := p.place.known().record.Next(replog.KindPush, "m", time.Now())
	rogue.Parent = replog.NewID()
	body, err := rogue.Encode()
	if err != nil {
		t.Fatal(err)
	}
	b.Set(p.place.log.Key(rogue.Number), body)
	if err := commit(broken, update("a", 0, 1)); !errors.Is(err, replog.ErrBrokenPromise) {
		t.Errorf("Commit = %v, want a broken promise", err)
	}
	want := "repos/" + p.place.id + "/" + broken.uploads[0].result.Key
	if got := packKeys(b); !slices.Equal(got, []string{want + ".idx", want + ".pack"}) {
		t.Errorf("the bucket has %q, want those of the second push, %s", got, want)
	}
}

// The repository changed while Git decided.
func TestCommitAfterChange(t *testing.T) {
	t.Parallel()
	s := newNode(t, newBucket(t))
	create(t, s, "x")
	p := newPusher(t, s, "x")
	if _, err := p.push(nil, update("a", 0, 1), update("b", 0, 1)); err != nil {
		t.Fatal(err)
	}
	if got := p.place.known().record.Head; got != "refs/heads/a" {
		t.Errorf("HEAD is %s after the first push, want refs/heads/a", got)
	}
	base := p.place.known()
	if _, err := p.place.SetHead(t.Context(), "refs/heads/b", nil); err != nil {
		t.Fatal(err)
	}
	result, err := p.pushFrom(base, nil, update("b", 1, 0))
	if err != nil || result.Refused[0] != receivepack.RefusedCurrent {
		t.Errorf("deleting the new branch of HEAD: refused %q, %v, want %q", result.Refused, err, receivepack.RefusedCurrent)
	}
	if _, err := p.place.change(t.Context(), func(head *state) (*replog.Record, error) {
		next := head.record.Next(replog.KindConfigure, "n", time.Now())
		next.Config = []replog.Setting{{Key: "receive.denydeletes", Value: "true"}}
		return next, nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.pushFrom(base, nil, update("b", 1, 2)); err == nil {
		t.Error("a push that Git checked by an older configuration was committed")
	}
	if err := s.Delete(t.Context(), repoPath("x"), places.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.pushFrom(base, nil, update("b", 1, 2)); err == nil {
		t.Error("a push to a deleted repository was committed")
	}
}

// Decisions without a record are made by the latest head, although the node knows only an earlier one.
func TestDecisionsWithoutARecord(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	a, c := newNode(t, b), newNode(t, b)
	create(t, a, "x")
	p, other := newPusher(t, a, "x"), newPusher(t, c, "x")
	if _, err := other.push(nil, update("b", 0, 1)); err != nil {
		t.Fatal(err)
	}
	if result, err := p.push(nil, update("b", 1, 2)); err != nil || result.Refused[0] != nil {
		t.Errorf("a push after that to another node: refused %q, %v, want success", result.Refused, err)
	}
	if _, err := other.place.SetHead(t.Context(), "refs/heads/b", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := p.place.SetHead(t.Context(), "refs/heads/main", nil); err != nil {
		t.Fatal(err)
	}
	if state, err := other.place.current(t.Context()); err != nil || state.record.Head != "refs/heads/main" {
		t.Errorf("HEAD is %s, %v after it was set back to refs/heads/main", state.record.Head, err)
	}
}

// Pushes that arrive while a record is being appended share the next one.
func TestCommitBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t)
		s := newNode(t, b)
		create(t, s, "x")
		p := newPusher(t, s, "x")
		before := p.place.known().record.Number
		b.SetFaults(buckettest.Faults{Latency: 50 * time.Millisecond})
		var pushes sync.WaitGroup
		for i := range 100 {
			pushes.Go(func() {
				if _, err := p.push(nil, update(fmt.Sprint(i), 0, i+1)); err != nil {
					t.Error(err)
				}
			})
		}
		pushes.Wait()
		if n := p.place.known().record.Number - before; n > 2 {
			t.Errorf("%d records for 100 pushes, want at most 2", n)
		}
		if n := len(p.place.known().layers.Changes); n != 100 {
			t.Errorf("%d refs, want 100", n)
		}
	})
}

// Two nodes push to the same refs, over a bucket that loses, delays and repeats writes. The log contradicts no result.
func TestCommitRaces(t *testing.T) {
	t.Parallel()
	seeds := uint64(100)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 0))
		chance := func() float64 { return max(0, .5*random.Float64()-.2) }
		faults := buckettest.Faults{LostRequests: chance(), LostAnswers: chance(), LateWrites: chance(),
			DoubledWrites: chance(), FailedReads: chance(), Throttled: chance(), Latency: 10 * time.Millisecond}
		synctest.Test(t, func(t *testing.T) {
			raceCommits(t, seed, faults)
			if t.Failed() {
				t.Fatalf("with seed %d and %+v", seed, faults)
			}
		})
	}
}

// outcome is a push as its client sees it.
type outcome struct {
	receivepack.Update
	result string // ok, refused, failed or unknown
}

func raceCommits(t *testing.T, seed uint64, faults buckettest.Faults) {
	b := buckettest.NewMemory(seed)
	t.Cleanup(func() { time.Sleep(time.Minute) }) // the requests without a caller end
	if _, err := Init(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	nodes := []*Store{newNode(t, b), newNode(t, b)}
	id := create(t, nodes[0], "x")
	pushers := []*pusher{newPusher(t, nodes[0], "x"), newPusher(t, nodes[1], "x")}
	b.SetFaults(faults)
	var mu sync.Mutex
	var outcomes []outcome
	value := 0
	var clients sync.WaitGroup
	for c := range 6 {
		clients.Go(func() {
			p := pushers[c%2]
			branch := fmt.Sprint(c % 3)
			for range 5 {
				old := git.ObjectID{}
				for _, ref := range p.place.known().layers.Changes {
					if ref.Name == update(branch, 0, 0).Ref {
						old = ref.ID
					}
				}
				mu.Lock()
				value++
				u := update(branch, 0, value)
				mu.Unlock()
				u.Old = old
				result, err := p.push(nil, u)
				o := outcome{u, "ok"}
				switch {
				case errors.Is(err, receivepack.ErrUnknown):
					o.result = "unknown"
				case err != nil:
					o.result = "failed"
				case result.Refused[0] != nil:
					o.result = "refused"
				}
				mu.Lock()
				outcomes = append(outcomes, o)
				mu.Unlock()
				_, _ = p.place.Layers(t.Context())
			}
		})
	}
	clients.Wait()
	b.SetFaults(buckettest.Faults{})
	b.Settle()
	checkOutcomes(t, b, id, outcomes)
}

// checkOutcomes compares the results of pushes with the log.
func checkOutcomes(t *testing.T, b *buckettest.Memory, id string, outcomes []outcome) {
	t.Helper()
	log := replog.Open(b, id)
	head, err := log.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	replaced := make(map[git.ObjectID]git.ObjectID) // by new value
	values := make(map[git.RefName]git.ObjectID)
	for n := uint64(1); n <= head.Number; n++ {
		record, err := log.Get(context.Background(), n)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(record.Refs.Tail, func(e replog.TailEntry) bool { return e.Number == n })
		if i < 0 {
			continue
		}
		for _, c := range record.Refs.Tail[i].Changes {
			if values[c.Name] != c.Old && !(values[c.Name].IsZero() && c.Old.IsZero()) {
				t.Errorf("record %d changes %s from %s, and its value is %s", n, c.Name, c.Old, values[c.Name])
			}
			values[c.Name] = c.New
			replaced[c.New] = c.Old
		}
	}
	for _, o := range outcomes {
		if o.result == "unknown" {
			continue
		}
		old, isCommitted := replaced[o.New]
		if isCommitted != (o.result == "ok") || isCommitted && old != o.Old && !(old.IsZero() && o.Old.IsZero()) {
			t.Errorf("result %q of %s %s..%s, and the log has it: %v, with the old value %s", o.result, o.Ref, o.Old, o.New,
				isCommitted, old)
		}
	}
}
