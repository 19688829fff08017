package refs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
)

// coarse is a file system that stamps files with this granularity.
func coarse(granularity time.Duration) func(identity) identity {
	return func(id identity) identity {
		id.Mtime -= id.Mtime % int64(granularity)
		id.Ctime -= id.Ctime % int64(granularity)
		return id
	}
}

// clocks are the file systems of the tests of changes. The tests never wait for a clock to tick.
var clocks = []struct {
	name        string
	granularity time.Duration
	steps       int
}{{"fine", 1, 60}, {"tick", 10 * time.Millisecond, 20}, {"1s", time.Second, 30}, {"2s", 2 * time.Second, 30}}

// TestEveryStepAgainstGit changes refs at random by all the ways git has, and compares with git after every step.
func TestEveryStepAgainstGit(t *testing.T) {
	t.Parallel()
	for i, c := range clocks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(100 + i)
			rnd := rand.New(rand.NewPCG(seed, 0))
			r := gittest.Random(t, seed, gittest.Shape{Commits: 10})
			ids := strings.Fields(r.Git("rev-list", "--all"))
			s := openBare(r, Options{coarsen: coarse(c.granularity)})
			names := []string{"main", "a", "a/b", "a/b/c", "z.d/x", "z-d", "z", "HEAD"}
			last := compareWithGit(t, r, s, "at first")
			for step := range c.steps {
				name := "refs/heads/" + names[rnd.IntN(len(names))]
				id := ids[rnd.IntN(len(ids))]
				var args []string
				switch rnd.IntN(10) {
				case 0, 1, 2:
					args = []string{"update-ref", name, id}
				case 3, 4:
					args = []string{"update-ref", "-d", name}
				case 5, 6:
					args = []string{"pack-refs", "--all"}
				case 7:
					args = []string{"symbolic-ref", []string{"HEAD", "refs/remotes/o/HEAD", "refs/heads/sym"}[rnd.IntN(3)], name}
				case 8:
					args = []string{"branch", "-f", "-m", names[rnd.IntN(len(names))], names[rnd.IntN(len(names))]}
				case 9:
					args = []string{"tag", "-f", "-a", "-m", "x", "t" + names[rnd.IntN(len(names))], id}
				}
				_, _ = r.Try(args...) // directory/file conflicts and the like fail; that is a state too
				what := fmt.Sprintf("seed %d, step %d, git %s", seed, step, strings.Join(args, " "))
				snap := compareWithGit(t, r, s, what)
				if (snap == last) != (snap.Generation() == last.Generation()) || snap.Generation() < last.Generation() {
					t.Fatalf("%s: generation %d after %d", what, snap.Generation(), last.Generation())
				}
				if dump(t, snap) != dump(t, last) && snap == last {
					t.Fatalf("%s: the snapshot changed", what)
				}
				last = snap
			}
		})
	}
}

// TestWritesWithinOneTick rewrites files in place, so that only their contents differ.
func TestWritesWithinOneTick(t *testing.T) {
	t.Parallel()
	ids := [2]git.ObjectID{git.MustParseObjectID(strings.Repeat("1", 40)), git.MustParseObjectID(strings.Repeat("2", 40))}
	for _, big := range []bool{false, true} { // packed-refs read, packed-refs mapped
		for _, c := range clocks {
			t.Run(fmt.Sprintf("%s/big=%v", c.name, big), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				write(t, filepath.Join(dir, "HEAD"), "ref: refs/heads/a\n")
				s := Open(dir, dir, Options{coarsen: coarse(c.granularity)})
				var last *Snapshot
				for i := range 50 {
					id, other := ids[i%2], ids[1-i%2]
					write(t, filepath.Join(dir, "refs/heads/a"), id.String()+"\n")
					text := fmt.Sprintf("# pack-refs with: peeled fully-peeled sorted \n%s refs/heads/b\n", other)
					if big {
						var more strings.Builder
						for n := range 500 {
							fmt.Fprintf(&more, "%s refs/tags/%04d\n", id, n)
						}
						text += more.String()
					}
					write(t, filepath.Join(dir, "packed-refs"), text)
					write(t, filepath.Join(dir, "HEAD"), fmt.Sprintf("ref: refs/heads/%c\n", "ab"[i%2]))
					snap := snapshot(t, s)
					a, _, err := snap.Lookup("refs/heads/a")
					b, _, err2 := snap.Lookup("refs/heads/b")
					if err := errors.Join(err, err2); err != nil || a.ID != id || b.ID != other {
						t.Fatalf("step %d: %v, a %s, b %s, want %s, %s", i, err, a.ID, b.ID, id, other)
					}
					if snap.Head().Target != git.RefName("refs/heads/"+"ab"[i%2:i%2+1]) || snap == last {
						t.Fatalf("step %d: HEAD %v", i, snap.Head())
					}
					if last = snap; snapshot(t, s) != snap {
						t.Fatalf("step %d: another snapshot of the same refs", i)
					}
				}
			})
		}
	}
}

// TestSettledFilesAreNotRead makes sure that trust is worth something.
func TestSettledFilesAreNotRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "HEAD"), "ref: refs/heads/a\n")
	write(t, filepath.Join(dir, "refs/heads/a"), strings.Repeat("1", 40)+"\n")
	frozen := func(id identity) identity { id.Mtime, id.Ctime = 1, 1; return id }
	s := Open(dir, dir, Options{coarsen: frozen})
	first := snapshot(t, s)
	write(t, filepath.Join(dir, "refs/heads/a"), strings.Repeat("2", 40)+"\n")
	if snapshot(t, s) != first {
		t.Error("read an unchanged file again, want no read")
	}
}

// TestPackedBetweenChecks moves refs to packed-refs after the loose refs were read and before packed-refs is read.
func TestPackedBetweenChecks(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	id := r.Commit("a").String()
	names := []string{"refs/heads/a", "refs/heads/b/c", "refs/tags/t"}
	var between func()
	s := openBare(r, Options{between: func() {
		if between != nil {
			between()
		}
	}})
	for i := range 6 {
		for _, name := range names {
			r.Git("update-ref", name, id)
		}
		if i%2 == 0 {
			r.Git("pack-refs", "--all")
		}
		between = func() {
			between = nil
			if i%3 == 0 {
				r.Git("update-ref", "refs/heads/new", id)
				r.Git("update-ref", "-d", "refs/heads/new")
			}
			r.Git("pack-refs", "--all")
		}
		snap := snapshot(t, s)
		for _, name := range names {
			if ref, ok, err := snap.Lookup(git.RefName(name)); !ok || err != nil || ref.ID.String() != id {
				t.Errorf("%s: %v %v %v", name, ref, ok, err)
			}
		}
		compareWithGit(t, r, s, "afterwards")
	}
}

// TestHeadMovedBetweenChecks deletes the branch that HEAD pointed to when it was read.
func TestHeadMovedBetweenChecks(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	id := r.Commit("a").String()
	r.Git("update-ref", "refs/heads/main", id)
	r.Git("pack-refs", "--all")
	moves := 0
	s := openBare(r, Options{between: func() {
		if moves++; moves == 1 {
			r.Git("update-ref", "refs/heads/trunk", id)
			r.Git("symbolic-ref", "HEAD", "refs/heads/trunk")
			r.Git("update-ref", "-d", "refs/heads/main")
		}
	}})
	if head := snapshot(t, s).Head(); head.Target != "refs/heads/trunk" || head.ID.String() != id {
		t.Errorf("HEAD, which was never unborn: %+v", head)
	}
}

// TestNeverQuiet gives up when packed-refs is replaced at every look.
func TestNeverQuiet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "HEAD"), "ref: refs/heads/a\n")
	write(t, filepath.Join(dir, "refs/heads/a"), strings.Repeat("1", 40)+"\n")
	write(t, filepath.Join(dir, "packed-refs"), "")
	var n atomic.Uint64
	s := Open(dir, dir, Options{coarsen: func(id identity) identity {
		if id.Size == 0 {
			id.Ino = n.Add(1)
		}
		return id
	}})
	if _, err := s.Snapshot(context.Background()); !fault.Is(err, fault.Unavailable) || fault.RetryAfter(err) == 0 {
		t.Errorf("got %v", err)
	}
}

// TestConcurrentWriters runs transactions and pack-refs against readers. A ref that always exists is never missing, and
// readers see only values that it had, in their order.
func TestConcurrentWriters(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	const branches, rounds = 12, 25
	var commits []git.ObjectID
	order := map[git.ObjectID]int{}
	var tip git.ObjectID
	for i := range 6 {
		tip = r.Commit(fmt.Sprint("commit ", i))
		order[tip] = i
		commits = append(commits, tip)
	}
	transaction := func(value, extra string) string {
		var in strings.Builder
		for i := range branches {
			fmt.Fprintf(&in, "update refs/heads/d%d/b%d %s\n", i%3, i, value)
		}
		return in.String() + extra
	}
	r.GitIn(transaction(commits[0].String(), ""), "update-ref", "--stdin")
	r.Git("symbolic-ref", "HEAD", "refs/heads/d0/b0")
	s := openBare(r, Options{})

	var version atomic.Int64 // of the last transaction that has certainly ended
	done := make(chan struct{})
	var writers, readers sync.WaitGroup
	writers.Go(func() {
		for i := 1; i <= rounds; i++ {
			in := transaction(commits[i%len(commits)].String(), fmt.Sprintf("create refs/heads/x%d %s\n", i, commits[0]))
			if i > 1 {
				in += fmt.Sprintf("delete refs/heads/x%d\n", i-1) // rewrites packed-refs
			}
			for {
				if err := tryIn(r, in, "update-ref", "--stdin"); err == nil {
					break // else pack-refs held a lock
				}
			}
			version.Store(int64(i))
		}
		close(done)
	})
	writers.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				_, _ = r.Try("pack-refs", "--all")
			}
		}
	})
	for range 3 {
		readers.Go(func() {
			for running := true; running; {
				select {
				case <-done:
					running = false
				default:
				}
				before := int(version.Load())
				snap, err := s.Snapshot(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				if snap.Head().ID.IsZero() {
					t.Error("HEAD is unborn")
				}
				n := 0
				err = snap.Each("refs/heads/d", func(ref Ref) error {
					n++
					// At most one transaction is under way: the value is the last known one or a later one.
					at, ok := order[ref.ID]
					after := int(version.Load()) + 1
					if !ok || !between(at, before, after, len(commits)) {
						t.Errorf("%s is %s (%d), between version %d and %d", ref.Name, ref.ID, at, before, after)
					}
					return nil
				})
				if err != nil || n != branches {
					t.Errorf("%d branches, %v", n, err)
				}
			}
		})
	}
	writers.Wait()
	readers.Wait()
	compareWithGit(t, r, s, "at the end")
}

// between reports whether value is one of the versions from, ..., to modulo n.
func between(value, from, to, n int) bool {
	for v := from; v <= to; v++ {
		if v%n == value {
			return true
		}
	}
	return false
}

func tryIn(r *gittest.Repo, stdin string, args ...string) error {
	cmd := gitCommand(r, args...)
	cmd.Stdin = strings.NewReader(stdin)
	return cmd.Run()
}

// TestLateCallersShareTheNextCheck blocks a read of the refs and checks which result each caller gets.
func TestLateCallersShareTheNextCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "HEAD"), "ref: refs/heads/a\n")
	path := filepath.Join(dir, "refs/heads/a")
	write(t, path, strings.Repeat("1", 40)+"\n")
	looks := make(chan chan struct{})
	m := NewMetrics(nil)
	s := Open(dir, dir, Options{Metrics: m, between: func() {
		goOn := make(chan struct{})
		looks <- goOn
		<-goOn
	}})
	type result struct {
		snap *Snapshot
		err  error
	}
	call := func(ctx context.Context) chan result {
		c := make(chan result, 1)
		go func() {
			snap, err := s.Snapshot(ctx)
			c <- result{snap, err}
		}()
		return c
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first := call(context.Background())
	goOn := <-looks
	write(t, path, strings.Repeat("2", 40)+"\n") // too late for the first look
	var late []chan result
	for range 10 {
		late = append(late, call(context.Background()))
	}
	leaving := call(ctx)
	waitForRound(s)
	cancel()
	if got := <-leaving; !errors.Is(got.err, context.Canceled) {
		t.Errorf("who left got %v", got.err)
	}
	close(goOn)
	one := <-first
	if one.err != nil || one.snap.Head().ID.String()[0] != '1' {
		t.Errorf("first: %v", one)
	}
	go func() {
		for goOn := range looks {
			close(goOn)
		}
	}()
	defer close(looks)
	for _, c := range late {
		if got := <-c; got.err != nil || got.snap.Head().ID.String()[0] != '2' {
			t.Errorf("late: %v", got)
		}
	}
	if loaded, reused := count(t, m.loaded), count(t, m.reused); loaded != 2 || reused != 9 {
		t.Errorf("%v loaded, %v reused, want 2, 9", loaded, reused)
	}
	if _, err := s.Snapshot(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("called with a context that has ended: %v", err)
	}
}

func count(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

// waitForRound returns when a caller waits for the next read.
func waitForRound(s *Store) {
	for {
		s.mu.Lock()
		waiting := s.next != nil
		s.mu.Unlock()
		if waiting {
			return
		}
		runtime.Gosched()
	}
}

// TestListingMissesARename: a known ref that a listing leaves out, though it is there, stays.
func TestListingMissesARename(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "HEAD"), "ref: refs/heads/b\n")
	for _, name := range []string{"a", "b", "c"} {
		write(t, filepath.Join(dir, "refs/heads", name), strings.Repeat("1", 40)+"\n")
	}
	s := Open(dir, dir, Options{})
	snapshot(t, s)
	heads := s.root.children[0]
	children, err := scan{s, time.Now().UnixNano()}.merge(heads, []string{"a"})
	if err != nil || len(children) != 3 {
		t.Errorf("%d children, %v", len(children), err)
	}
	remove(t, filepath.Join(dir, "refs/heads/c"))
	if children, err = (scan{s, time.Now().UnixNano()}).merge(heads, []string{"a"}); err != nil || len(children) != 2 {
		t.Errorf("%d children, %v", len(children), err)
	}
}

func TestPackedShortenedInPlace(t *testing.T) {
	t.Parallel()
	s := bigRepo(t, 20_000, 1)
	path := strings.TrimSuffix(s.packedPath, "\x00")
	before := snapshot(t, s)
	if err := os.Truncate(path, 5000); err != nil {
		t.Fatal(err)
	}
	if _, _, err := before.Lookup("refs/heads/group-900/branch-018001"); !fault.Is(err, fault.Corrupt) {
		t.Errorf("the snapshot from before: %v", err)
	}
	if err := before.Each("", func(Ref) error { return nil }); !fault.Is(err, fault.Corrupt) {
		t.Errorf("the snapshot from before: %v", err)
	}
	for range 2 {
		if _, err := s.Snapshot(context.Background()); !fault.Is(err, fault.Corrupt) {
			t.Errorf("a snapshot from after: %v", err)
		}
	}
	write(t, path, "# pack-refs with: peeled fully-peeled sorted \n"+strings.Repeat("1", 40)+" refs/heads/main\n")
	if head := snapshot(t, s).Head(); head.ID.IsZero() {
		t.Errorf("after its repair: %v", head)
	}
}
