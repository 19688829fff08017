package resolve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
)

// settle waits until repositories that were asked for are watched.
func settle() {
	time.Sleep(2 * gather)
	synctest.Wait()
}

// A look-up that is slow must not put back what an event has ended since.
func TestSlowFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a")
		tiers := newTiers(t, fake)
		ask(t, tiers, "a", "main")
		settle()
		fake.mu.Lock()
		fake.repos[path("a")].refs["slow"] = fake.serial
		fake.mu.Unlock()
		computed, goOn := make(chan bool), make(chan bool)
		var held atomic.Bool
		fake.hold(func([]node.Question) {
			if held.CompareAndSwap(false, true) {
				close(computed)
				<-goOn
			}
		})
		slow := make(chan node.Result)
		go func() {
			r, _ := tiers.Resolve(t.Context(), []node.Question{question("a", "slow")})
			slow <- r[0]
		}()
		<-computed
		want := fake.move(path("a"))
		synctest.Wait() // the event has come, the old answer has not
		// A later caller does not wait for the old answer.
		if got := ask(t, tiers, "a", "slow"); serialOf(got.ID) != want {
			t.Errorf("after the event the answer is of state %d; want %d", serialOf(got.ID), want)
		}
		close(goOn)
		if got := <-slow; serialOf(got.ID) != want {
			t.Errorf("the slow look-up gave state %d, older than the event's %d", serialOf(got.ID), want)
		}
		if got := ask(t, tiers, "a", "slow"); serialOf(got.ID) != want {
			t.Errorf("memory was filled with state %d; want %d", serialOf(got.ID), want)
		}
	})
}

// The same across two incarnations, whose generations cannot be compared.
func TestSlowFillOfNewIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a")
		tiers := newTiers(t, fake)
		ask(t, tiers, "a", "HEAD")
		settle()
		computed, goOn := make(chan bool), make(chan bool)
		var held atomic.Bool
		fake.hold(func([]node.Question) {
			if held.CompareAndSwap(false, true) {
				close(computed)
				<-goOn
			}
		})
		slow := make(chan node.Result)
		go func() {
			r, _ := tiers.Resolve(t.Context(), []node.Question{question("a", "main")})
			slow <- r[0]
		}()
		<-computed
		fake.remove(path("a"))
		synctest.Wait()
		if got := ask(t, tiers, "a", "HEAD"); !fault.Is(got.Err, fault.NotFound) {
			t.Errorf("a repository that is gone answers %v", got)
		}
		fake.create(path("a"))
		synctest.Wait()
		close(goOn)
		if got := <-slow; got.Version.Incarnation != "i2" {
			t.Errorf("the slow look-up gave incarnation %s", got.Version.Incarnation)
		}
		if got := ask(t, tiers, "a", "main"); got.Version.Incarnation != "i2" {
			t.Errorf("memory has incarnation %s", got.Version.Incarnation)
		}
	})
}

// Events end an answer at once, and while they come nothing else does.
func TestWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a", "b")
		tiers := newTiers(t, fake)
		ask(t, tiers, "a", "main")
		ask(t, tiers, "b", "main")
		settle()
		calls, _ := fake.counts()
		time.Sleep(24 * time.Hour)
		ask(t, tiers, "a", "main")
		if now, _ := fake.counts(); now != calls {
			t.Errorf("the node was asked %d times for what it watches", now-calls)
		}
		for range 3 {
			want := fake.move(path("a"))
			synctest.Wait()
			wantSerial(t, tiers, "a", want)
		}
		fake.restart()
		synctest.Wait()
		time.Sleep(5 * time.Second) // the watch is taken up again
		if got := ask(t, tiers, "b", "main"); got.Version.Epoch != 2 {
			t.Errorf("after a restart the answer is of epoch %d", got.Version.Epoch)
		}
	})
}

// A requested repository is watched soon, also while others are requested continuously.
func TestWatchedAmongOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := make([]string, 20)
		for i := range names {
			names[i] = fmt.Sprint("r", i)
		}
		fake := newFakeNode(names...)
		tiers := newTiers(t, fake)
		for _, name := range names {
			ask(t, tiers, name, "main")
			time.Sleep(gather / 2)
		}
		want := fake.move(path("r0"))
		synctest.Wait()
		wantSerial(t, tiers, "r0", want)
	})
}

// The TTL is the bound while no events come.
func TestUnwatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a")
		fake.mute = fault.New(fault.Unavailable, "no events today")
		tiers := newTiers(t, fake)
		first := serialOf(ask(t, tiers, "a", "main").ID)
		want := fake.move(path("a"))
		time.Sleep(59 * time.Second)
		wantSerial(t, tiers, "a", first)
		time.Sleep(2 * time.Second)
		wantSerial(t, tiers, "a", want)
	})
}

// When events break off, answers hold for the TTL from then on; when they come again, what was missed counts at once.
func TestEventsBreakOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a")
		tiers := newTiers(t, fake)
		first := serialOf(ask(t, tiers, "a", "main").ID)
		settle()
		time.Sleep(time.Hour)
		fake.mu.Lock()
		fake.mute = fault.New(fault.Unavailable, "down")
		fake.cut()
		fake.mu.Unlock()
		synctest.Wait()
		want := fake.move(path("a"))
		time.Sleep(50 * time.Second)
		wantSerial(t, tiers, "a", first)
		if n, _ := staleness(t, tiers); n != 0 {
			t.Errorf("%d changes were found before one was", n)
		}
		time.Sleep(11 * time.Second)
		wantSerial(t, tiers, "a", want)
		if n, sum := staleness(t, tiers); n != 1 || sum < 50 || sum > 61 {
			t.Errorf("%d changes were found, answers from before them may have been given for %v s; want 1 and nearly 61", n,
				sum)
		}
		want = fake.move(path("a"))
		fake.mu.Lock()
		fake.mute = nil
		fake.mu.Unlock()
		time.Sleep(40 * time.Second) // the longest time between attempts
		wantSerial(t, tiers, "a", want)
		calls, _ := fake.counts()
		time.Sleep(time.Hour)
		wantSerial(t, tiers, "a", want)
		if now, _ := fake.counts(); now != calls {
			t.Error("what is watched again is still held for a TTL only")
		}
	})
}

// A missing revision is cached for a short time, a missing repository is not cached.
func TestMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a")
		tiers := newTiers(t, fake)
		for range 3 {
			if got := ask(t, tiers, "a", "nothing"); !fault.Is(got.Err, fault.NotFound) {
				t.Fatal(got)
			}
		}
		if _, asked := fake.counts(); asked != 1 {
			t.Errorf("what is missing was asked for %d times; want once", asked)
		}
		settle()
		fake.mu.Lock()
		fake.repos[path("a")].refs["nothing"] = 7 // as an object that was put there: no ref has changed
		fake.mu.Unlock()
		time.Sleep(2 * time.Second)
		if got := ask(t, tiers, "a", "nothing"); got.Err != nil {
			t.Error(got.Err)
		}
		if got := ask(t, tiers, "new", "main"); !fault.Is(got.Err, fault.NotFound) {
			t.Error(got)
		}
		fake.create(path("new"))
		if got := ask(t, tiers, "new", "main"); got.Err != nil {
			t.Error(got.Err)
		}
		// Errors never take more than their share.
		for i := range 5000 {
			ask(t, tiers, "a", fmt.Sprint("no", i))
		}
		tiers.mu.Lock()
		defer tiers.mu.Unlock()
		if tiers.misses > tiers.o.Entries/missShare {
			t.Errorf("%d of %d entries are errors", tiers.misses, tiers.o.Entries)
		}
	})
}

// Look-ups that ask the same at the same time share one, and none of them ends it for the others.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a")
		tiers := newTiers(t, fake)
		goOn := make(chan bool)
		fake.hold(func([]node.Question) { <-goOn })
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := tiers.Resolve(ctx, []node.Question{question("a", "main")}); !errors.Is(err, context.Canceled) {
				t.Errorf("the first one, whose caller went away: %v", err)
			}
		})
		synctest.Wait()
		for range 913 {
			all.Go(func() { wantSerial(t, tiers, "a", 1) })
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(goOn)
		all.Wait()
		if calls, _ := fake.counts(); calls != 1 {
			t.Errorf("914 look-ups of the same asked the node %d times", calls)
		}
	})
}

// A look-up without waiting callers is cancelled.
func TestAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan bool)
		tiers := newTiers(t, stuckNode{ended})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := tiers.Resolve(ctx, []node.Question{question("a", "main")}); fault.KindOf(err) != fault.Deadline {
			t.Error(err)
		}
		<-ended
	})
}

type stuckNode struct{ ended chan bool }

func (n stuckNode) Resolve(ctx context.Context, _ []node.Question) ([]node.Result, error) {
	<-ctx.Done()
	close(n.ended)
	return nil, ctx.Err()
}

func (n stuckNode) Watch(ctx context.Context, _ []node.Known, _ func(node.Event) error) error {
	return ctx.Err()
}

// A node may hang and ignore the deadline. Later callers do not wait for it, and its late answer is discarded.
func TestHangingNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a")
		fake.mute = errors.New("no events")
		hung, held := make(chan bool), true
		fake.hold(func([]node.Question) {
			if held {
				held = false
				<-hung
			}
		})
		tiers := newTiers(t, fake)
		first := make(chan error, 1)
		go func() {
			_, err := tiers.Resolve(t.Context(), []node.Question{question("a", "main")})
			first <- err
		}()
		synctest.Wait()
		serial := fake.move(path("a"))
		time.Sleep(fillLimit)
		synctest.Wait() // the fill's deadline expires in the same instant
		wantSerial(t, tiers, "a", serial)
		close(hung)
		if err := <-first; !fault.Is(err, fault.Deadline) {
			t.Errorf("the late answer: %v", err)
		}
		wantSerial(t, tiers, "a", serial)
	})
}

// A page of results is one call of the node, and shows one state of each repository.
func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a", "b")
		tiers := newTiers(t, fake)
		var page []node.Question
		for i := range 1000 {
			page = append(page, question([]string{"a", "b", "gone"}[i%3], []string{"HEAD", "main", "", "none"}[i%4]))
		}
		results, err := tiers.Resolve(t.Context(), page)
		if err != nil {
			t.Fatal(err)
		}
		if calls, asked := fake.counts(); calls != 1 || asked != 9 {
			t.Errorf("%d calls with %d questions; want one with those that differ, 9", calls, asked)
		}
		for i, r := range results {
			q := normal(page[i])
			if want := q.Repository == path("gone") || q.Revision == "none"; want != (r.Err != nil) {
				t.Fatalf("%v: %v", q, r)
			}
		}
		// One half is in memory, the other is looked up after a change whose event has not arrived.
		settle()
		fake.mu.Lock()
		fake.queued = true
		fake.mu.Unlock()
		want := fake.move(path("a"))
		fake.mu.Lock()
		fake.repos[path("a")].refs["other"] = want
		fake.mu.Unlock()
		results, err = tiers.Resolve(t.Context(), []node.Question{question("a", "main"), question("b", "main"),
			question("a", "other")})
		if err != nil || serialOf(results[0].ID) != want || results[0].Version != results[2].Version {
			t.Errorf("one page has two states: %v, %v", results, err)
		}
	})
}

// Memory is bounded whatever is asked for, and what nothing refers to is let go.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode()
		tiers := newTiers(t, fake, func(o *Options) { o.Entries, o.Watched = 50, 20 })
		for i := range 300 {
			name := fmt.Sprint("r", i)
			fake.create(path(name))
			ask(t, tiers, name, "main")
			if i%10 == 0 {
				settle()
			}
		}
		settle()
		tiers.mu.Lock()
		entries, repos, watched := tiers.answers.Len(), len(tiers.repos), tiers.watched
		tiers.mu.Unlock()
		if entries > 50 || repos > 70 || watched > 20 {
			t.Errorf("%d entries, %d repositories, %d watched", entries, repos, watched)
		}
		// Unused repositories make room.
		time.Sleep(3 * sweepEvery)
		ask(t, tiers, "r299", "main")
		ask(t, tiers, "r298", "main")
		time.Sleep(3 * sweepEvery)
		ask(t, tiers, "r299", "main")
		settle()
		calls, _ := fake.counts()
		time.Sleep(10 * time.Hour)
		ask(t, tiers, "r299", "main")
		if now, _ := fake.counts(); now != calls {
			t.Error("a repository that is asked for is not watched, though others are idle")
		}
		tiers.mu.Lock()
		defer tiers.mu.Unlock()
		for _, g := range tiers.groups {
			if len(g.streams) > 8 {
				t.Errorf("%d streams for 20 repositories", len(g.streams))
			}
		}
	})
}

// Changed reports a change before its event.
func TestChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a.git")
		tiers := newTiers(t, fake)
		ask(t, tiers, "a.git", "main")
		settle()
		fake.mu.Lock()
		fake.queued = true
		fake.mu.Unlock()
		want := fake.move(path("a.git"))
		tiers.Changed(path("a"))
		wantSerial(t, tiers, "a.git", want)
		fake.letGo()
		synctest.Wait()
		wantSerial(t, tiers, "a.git", want)
	})
}

func TestFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a")
		fake.failing = fault.New(fault.Unavailable, "away")
		tiers := newTiers(t, fake)
		if _, err := tiers.Resolve(t.Context(), []node.Question{question("a", "main")}); !fault.Is(err, fault.Unavailable) {
			t.Error(err)
		}
		fake.failing = nil
		wantSerial(t, tiers, "a", 1)
		if _, err := tiers.Resolve(t.Context(), make([]node.Question, maxBatch+1)); !fault.Is(err, fault.Invalid) {
			t.Error(err)
		}
	})
}

// staleness is how many changes the metric has counted, and the seconds for which answers from before may have been
// given.
func staleness(t *testing.T, tiers *Tiers) (n uint64, seconds float64) {
	t.Helper()
	var m dto.Metric
	if err := tiers.o.Metrics.stale.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
}

// A change with an event makes no answer stale.
func TestStaleness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a")
		tiers := newTiers(t, fake)
		ask(t, tiers, "a", "main")
		settle()
		time.Sleep(time.Hour)
		want := fake.move(path("a"))
		synctest.Wait()
		wantSerial(t, tiers, "a", want)
		if n, sum := staleness(t, tiers); n != 1 || sum != 0 {
			t.Errorf("%d changes were found, after %v s", n, sum)
		}
	})
}

// While the node refuses further watches, the TTL is the limit, and the log has one line about it.
func TestNodeWatchesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFakeNode("a")
		fake.mute = fault.Retry(fault.Exhausted, time.Minute,
			"1 more repositories would be more than the 10000 that can be watched")
		var log strings.Builder
		tiers := newTiers(t, fake, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		for range 20 {
			ask(t, tiers, "a", "main")
			time.Sleep(time.Minute)
		}
		want := fake.move(path("a"))
		time.Sleep(61 * time.Second)
		wantSerial(t, tiers, "a", want)
		fake.mu.Lock()
		fake.mute = nil
		fake.mu.Unlock()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		want = fake.move(path("a"))
		synctest.Wait()
		wantSerial(t, tiers, "a", want)
		if text := log.String(); strings.Count(text, "level=WARN") != 1 ||
			!strings.Contains(text, "a node refuses further watches") {
			t.Errorf("the log says %s", text)
		}
	})
}
