package storage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/lfs/objects"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/merge"
	"github.com/packhorse-git/packhorse/internal/node/places"
	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/node/scratch"
	"github.com/packhorse-git/packhorse/internal/node/storage"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

// newWritten makes a root whose repositories can be written to.
func newWritten(t testing.TB, o receivepack.Options, dir ...string) *root {
	return newWrittenAs(t, o, storage.Options{Root: strings.Join(dir, "")})
}

func newWrittenAs(t testing.TB, o receivepack.Options, as storage.Options) *root {
	t.Helper()
	git := "git"
	if newer := os.Getenv("PACKHORSE_TEST_NEWER_GIT"); newer != "" {
		git = newer
	}
	runner, err := process.New(process.Options{Git: git, TempDir: t.TempDir(), Classes: map[process.Class]process.Limits{
		receivepack.ClassReceive: {Slots: 4, Queue: 1000}, receivepack.ClassUpdate: {Slots: 4},
		receivepack.ClassHook: {Slots: 4, Queue: 100},
		repo.ClassRefs:        {Slots: 4, Queue: 100},
		merge.Class:           {Slots: 2, Queue: 100},
		places.ClassManage:    {Slots: 2, Queue: 100},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = runner.Close(context.Background()) })
	o.Runner, o.Agent, o.Scripts, o.Journal = runner, "test", t.TempDir(), t.TempDir()
	pushes, err := receivepack.New(o)
	if err != nil {
		t.Fatal(err)
	}
	space, err := scratch.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	as.Merger = merge.New(merge.Options{Runner: runner, Space: space})
	as.Pushes, as.Tables, as.Runner = pushes, repo.NewTables(runner), runner
	r := newRoot(t, as)
	r.runner = runner
	return r
}

// put returns a change that adds a file to a branch, as a commit.
func put(branch, file, text string) write.Change {
	ref := git.RefName("refs/heads/" + branch)
	return write.Change{Build: func(ctx context.Context, s write.State) (write.Plan, error) {
		old, err := s.Ref(ref)
		if err != nil {
			return write.Plan{}, err
		}
		commit, objects, err := putFile(s, old, file, text)
		return write.Plan{Updates: []receivepack.Update{{Ref: ref, Old: old, New: commit}}, Objects: objects}, err
	}}
}

// putFile makes the objects of a commit that adds a file to the top directory.
func putFile(s write.State, parent git.ObjectID, file, text string) (git.ObjectID, []*write.Object, error) {
	format := s.Repo().Format
	entries, headers := make(map[string][]byte), ""
	if !parent.IsZero() {
		_, data, err := s.Read(parent, 0)
		if err != nil {
			return git.ObjectID{}, nil, err
		}
		commit, err := pack.ParseCommit(data, format)
		if err != nil {
			return git.ObjectID{}, nil, err
		}
		_, data, err = s.Read(commit.Tree, 0)
		if err != nil {
			return git.ObjectID{}, nil, err
		}
		err = pack.Entries(data, format, func(mode uint32, name []byte, id git.ObjectID) error {
			entries[string(name)] = append(fmt.Appendf(nil, "%o %s\x00", mode, name), id.Raw()...)
			return nil
		})
		if err != nil {
			return git.ObjectID{}, nil, err
		}
		headers = "parent " + parent.String() + "\n"
	}
	blob := write.NewObject(format, git.Blob, []byte(text))
	entries[file] = append(fmt.Appendf(nil, "100644 %s\x00", file), blob.ID.Raw()...)
	var names []string
	for name := range entries {
		names = append(names, name)
	}
	slices.Sort(names)
	var tree []byte
	for _, name := range names {
		tree = append(tree, entries[name]...)
	}
	top := write.NewObject(format, git.Tree, tree)
	commit := write.NewObject(format, git.Commit, fmt.Appendf(nil, "tree %s\n%sauthor A <a@b> 1700000000 +0000\n"+
		"committer A <a@b> 1700000000 +0000\n\nput %s\n", top.ID, headers, file))
	return commit.ID, []*write.Object{blob, top, commit}, nil
}

func (r *root) change(path string, c write.Change) (write.Result, error) {
	r.t.Helper()
	return r.Write(r.t.Context(), r.path(path), c)
}

// checkWritten checks a repository with git, and that main has n files.
func checkWritten(t *testing.T, of *gittest.Repo, n int) {
	t.Helper()
	if out, err := of.Try("fsck", "--strict", "--full"); err != nil {
		t.Errorf("git fsck: %v\n%s", err, out)
	}
	if got := len(strings.Fields(of.Git("ls-tree", "--name-only", "main"))); got != n {
		t.Errorf("main has %d files, want %d", got, n)
	}
	if left, _ := filepath.Glob(filepath.Join(of.Dir, "refs/heads/*.lock")); len(left) > 0 {
		t.Errorf("lock files are left: %v", left)
	}
}

// eachKind runs a test for every kind of repository on a disk.
func eachKind(t *testing.T, fn func(t *testing.T, args ...string)) {
	kinds := [][]string{{}, {"--object-format=sha256"}}
	if os.Getenv("PACKHORSE_TEST_NEWER_GIT") != "" {
		kinds = append(kinds, []string{"--ref-format=reftable"}, []string{"--ref-format=reftable", "--object-format=sha256"})
	}
	for _, args := range kinds {
		t.Run(strings.Join(args, ""), func(t *testing.T) {
			t.Parallel()
			fn(t, args...)
		})
	}
}

// initAt makes an empty repository below the root.
func (r *root) initAt(path string, args ...string) *gittest.Repo {
	r.t.Helper()
	dir := filepath.Join(r.dir, path)
	of := gittest.InitAt(r.t, dir)
	if len(args) > 0 && strings.HasPrefix(args[0], "--ref-format") {
		r.do(os.RemoveAll(dir))
		r.do(os.Mkdir(dir, 0o755))
		of.Newer(append([]string{"init", "-q", "--bare", "-b", "main", dir}, args...)...)
		return of
	}
	r.do(os.RemoveAll(dir))
	return gittest.InitAt(r.t, dir, args...)
}

func TestWrite(t *testing.T) {
	t.Parallel()
	r := newWritten(t, receivepack.Options{})
	of := r.initAt("app.git")
	first, err := r.change("app", put("main", "a.txt", "one\n"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.change("app", put("main", "b.txt", "two\n"))
	if err != nil || second.Version.Generation <= first.Version.Generation {
		t.Fatalf("versions %v and %v, %v", first.Version, second.Version, err)
	}
	checkWritten(t, of, 2)
	dry := put("main", "c.txt", "three\n")
	dry.DryRun = true
	if _, err := r.change("app", dry); err != nil {
		t.Fatal(err)
	}
	checkWritten(t, of, 2)
	for name, test := range map[string]struct {
		change write.Change
		kind   fault.Kind
	}{
		"below a ref":  {put("main/x", "a", "x"), fault.Precondition},
		"invalid tree": {update("refs/heads/odd", "", "4b825dc642cb6eb9a060e54bf8d69288fbee4904"), fault.Invalid},
		"wrong value":  {update("refs/heads/main", strings.Repeat("1", 40), of.ID("main").String()), fault.Aborted},
		"no object":    {update("refs/heads/x", "", strings.Repeat("1", 40)), fault.NotFound},
		"own error": {write.Change{Build: func(context.Context, write.State) (write.Plan, error) {
			return write.Plan{}, fault.New(fault.Exists, "x")
		}}, fault.Exists},
	} {
		if _, err := r.change("app", test.change); !fault.Is(err, test.kind) {
			t.Errorf("%s: %v (%v), want %v", name, err, fault.KindOf(err), test.kind)
		}
	}
	of.Git("update-ref", "refs/hidden/x", "main")
	of.Git("config", "receive.hideRefs", "refs/hidden")
	if _, err := r.change("app", update("refs/hidden/x", "", of.ID("main^").String())); !fault.Is(err, fault.Denied) {
		t.Errorf("a hidden ref: %v", err)
	}
	checkWritten(t, of, 2)
}

// update returns a change of one ref from one ID to another, which may be empty.
func update(ref git.RefName, from, to string) write.Change {
	return write.Change{Build: func(context.Context, write.State) (write.Plan, error) {
		u := receivepack.Update{Ref: ref}
		if from != "" {
			u.Old = git.MustParseObjectID(from)
		}
		if to != "" {
			u.New = git.MustParseObjectID(to)
		}
		return write.Plan{Updates: []receivepack.Update{u}}, nil
	}}
}

// Many callers that change different files of one branch, or their own branches.
func TestConcurrentWrites(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, args ...string) {
		writers, commits := 16, 4
		if testing.Short() {
			writers, commits = 8, 2
		}
		r := newWritten(t, receivepack.Options{})
		of := r.initAt("app.git", args...)
		var group sync.WaitGroup
		for w := range writers {
			group.Go(func() {
				for c := range commits {
					if _, err := r.change("app", put("main", fmt.Sprintf("%d-%d.txt", w, c), "x\n")); err != nil {
						t.Error(err)
					}
					if _, err := r.change("app", put(fmt.Sprint("own-", w), fmt.Sprintf("%d.txt", c), "x\n")); err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		if len(args) == 0 {
			checkWritten(t, of, writers*commits)
		} else if got := len(strings.Fields(of.Newer("ls-tree", "--name-only", "main"))); got != writers*commits {
			t.Errorf("main has %d files, want %d", got, writers*commits)
		}
	})
}

// refusing refuses pushes to branches with "no" in their name.
type refusing struct{ asked chan receivepack.Push }

func (r refusing) Decide(_ context.Context, p *receivepack.Push) error {
	r.asked <- *p
	if strings.Contains(string(p.Updates[0].Ref), "no") {
		return fault.New(fault.Denied, "not this branch")
	}
	return nil
}

func TestRulesOfWrites(t *testing.T) {
	t.Parallel()
	decider := refusing{make(chan receivepack.Push, 10)}
	r := newWritten(t, receivepack.Options{Decider: decider, RepositoryHooks: receivepack.RunHooks})
	of := r.initAt("app.git")
	c := put("main", "a", "a")
	c.Pusher, c.Options = node.Pusher{Name: "eve"}, []string{"ci.skip"}
	of.Git("config", "receive.advertisePushOptions", "true")
	if _, err := r.change("app", c); err != nil {
		t.Fatal(err)
	}
	if p := <-decider.asked; p.Pusher.Name != "eve" || !slices.Equal(p.Options, c.Options) || len(p.Updates) != 1 {
		t.Errorf("the decider got %+v", p)
	}
	_, err := r.change("app", put("no", "a", "a"))
	if !fault.Is(err, fault.Denied) || !strings.Contains(fault.Message(err), "not this branch") {
		t.Errorf("a refused branch: %v", err)
	}
	hook := filepath.Join(of.Dir, "hooks/update")
	r.do(os.MkdirAll(filepath.Dir(hook), 0o755))
	r.do(os.WriteFile(hook, []byte("#!/bin/sh\necho about $1\ntest $1 != refs/heads/bad\n"), 0o755))
	result, err := r.change("app", put("good", "a", "a"))
	if err != nil || !slices.Contains(result.Messages, "about refs/heads/good") {
		t.Errorf("messages %q, %v", result.Messages, err)
	}
	both := write.Change{Build: func(_ context.Context, s write.State) (write.Plan, error) {
		id, err := s.Ref("refs/heads/good")
		return write.Plan{Updates: []receivepack.Update{{Ref: "refs/heads/bad", New: id}, {Ref: "refs/heads/fine", New: id}}},
			err
	}}
	if result, err := r.change("app", both); err != nil || !fault.Is(result.Refused[0], fault.Denied) ||
		result.Refused[1] != nil || !strings.Contains(fault.Message(result.Refused[0]), "about refs/heads/bad") {
		t.Errorf("refused %v, %v", result.Refused, err)
	}
	both.Atomic = true
	of.Git("update-ref", "-d", "refs/heads/fine")
	if _, err := r.change("app", both); !fault.Is(err, fault.Denied) {
		t.Errorf("an atomic change: %v", err)
	}
	r.do(os.WriteFile(filepath.Join(of.Dir, places.MirrorFile),
		[]byte(`{"origin":"https://eve:secret@example.org/git","path":"team/app"}`), 0o600))
	r.ServeMirrors(func(git.RepoPath, places.MirrorMarks) error { return nil })
	of.Git("config", places.MirrorKey, "true")
	if _, err := r.change("app", both); !fault.Is(err, fault.Precondition) || !strings.HasSuffix(fault.Message(err),
		"at its origin, https://example.org/git/team/app") {
		t.Errorf("a mirror: %v", err)
	}
}

// TestRulesOfSymbolicRefs checks that a change through a symbolic ref needs permission for the target, which need not
// exist.
func TestRulesOfSymbolicRefs(t *testing.T) {
	t.Parallel()
	r := newWritten(t, receivepack.Options{})
	of := r.initAt("app.git")
	if _, err := r.change("app", put("main", "a", "a")); err != nil {
		t.Fatal(err)
	}
	of.Git("symbolic-ref", "refs/heads/link", "refs/heads/dangling")
	of.Git("symbolic-ref", "refs/heads/dangling", "refs/heads/none")
	rule := func(pattern string, may node.RefChange) node.RefRule {
		return node.RefRule{Name: "rule " + pattern, Refs: []node.RefPattern{strings.Split(pattern, "/")}, May: may}
	}
	rules := node.RefRules{Rules: []node.RefRule{rule("refs/heads/none", node.RefWrite),
		rule("refs/**", node.AllRefChanges)}}
	commit := put("link", "b", "b")
	update := write.Change{Build: func(_ context.Context, s write.State) (write.Plan, error) {
		id, err := s.Ref("refs/heads/main")
		return write.Plan{Updates: []receivepack.Update{{Ref: "refs/heads/link", New: id}}}, err
	}}
	for _, c := range []write.Change{commit, update} {
		c.Pusher = node.Pusher{Name: "eve", Rules: rules}
		result, err := r.change("app", c)
		if len(result.Refused) > 0 && err == nil {
			err = result.Refused[0]
		}
		if !fault.Is(err, fault.Denied) || !strings.Contains(fault.Message(err),
			"creation refused by rule refs/heads/none, which permits: write (of refs/heads/none)") {
			t.Errorf("a change through a dangling symbolic ref: %v", err)
		}
	}
	if _, err := of.Try("rev-parse", "--verify", "-q", "refs/heads/none"); err == nil {
		t.Error("the target was created")
	}
	rules.Rules[0].May = node.RefCreate
	update.Pusher = node.Pusher{Name: "eve", Rules: rules}
	_, err := r.change("app", update)
	if err != nil || of.Git("rev-parse", "refs/heads/none") != of.Git("rev-parse", "main") {
		t.Errorf("with permission to create the target: %v", err)
	}
}

// A pointer file of Git LFS needs its object.
func TestWriteOfPointerFiles(t *testing.T) {
	t.Parallel()
	r := newWrittenAs(t, receivepack.Options{}, storage.Options{LFS: &objects.Options{MinFree: -1}})
	of := r.initAt("app.git")
	_, err := r.change("app", put("main", "first", "x"))
	r.do(err)
	content := []byte("large")
	o := objectOf(content)
	pointer := put("main", "pointer", fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n",
		o.OID, o.Size))
	if _, err := r.change("app", pointer); err == nil || !strings.Contains(fault.Message(err), o.OID.String()) {
		t.Errorf("a pointer file without its object: %v", err)
	}
	large{r}.upload(r.path("app"), content)
	_, err = r.change("app", pointer)
	r.do(err)
	checkWritten(t, of, 2)
}

// Git itself changes the branch beside callers. Every commit of both is there, and no caller was refused.
func TestWritesBesideGit(t *testing.T) {
	t.Parallel()
	r := newWritten(t, receivepack.Options{})
	of := r.initAt("app.git")
	_, err := r.change("app", put("main", "first", "x"))
	r.do(err)
	writers, commits := 32, 8
	if testing.Short() {
		writers, commits = 8, 3
	}
	var group, git sync.WaitGroup
	made, written := make(chan struct{}, 1), make(chan struct{}) // git makes at most as many commits as callers
	for w := range writers {
		group.Go(func() {
			for c := range commits {
				if _, err := r.change("app", put("main", fmt.Sprintf("%d-%d", w, c), "x")); err != nil {
					t.Error(err)
				}
				select {
				case made <- struct{}{}:
				default:
				}
			}
		})
	}
	pushed := 0
	git.Go(func() {
		for {
			select {
			case <-written:
				return
			case <-made:
			}
			tip := of.ID("main")
			next := of.Git("commit-tree", "-p", tip.String(), "-m", fmt.Sprint("git ", pushed), tip.String()+"^{tree}")
			if _, err := of.Try("update-ref", "refs/heads/main", strings.TrimSpace(next), tip.String()); err == nil {
				pushed++
			}
		}
	})
	group.Wait()
	close(written)
	git.Wait()
	checkWritten(t, of, 1+writers*commits)
	if got, want := strings.TrimSpace(of.Git("rev-list", "--count", "main")), 1+writers*commits+pushed; got != fmt.Sprint(
		want) {
		t.Errorf("main has %s commits, want %d, of which git made %d", got, want, pushed)
	}
	t.Logf("git made %d commits", pushed)
}

// A change that has no effect because of an earlier one of its batch is not made if the earlier one fails.
func TestRepeatedWriteInFailingBatch(t *testing.T) {
	t.Parallel()
	r := newWritten(t, receivepack.Options{})
	of := r.initAt("app.git")
	_, err := r.change("app", put("main", "first", "x"))
	r.do(err)
	lock := filepath.Join(of.Dir, "refs/heads/x.lock")
	r.do(os.WriteFile(lock, nil, 0o644))
	main := of.ID("main")
	builds, begun, free, errs := 0, make(chan struct{}), make(chan struct{}), make([]chan error, 3)
	for i, build := range []func(x git.ObjectID) error{
		func(git.ObjectID) error {
			close(begun)
			<-free
			return fault.New(fault.Precondition, "the others waited")
		},
		func(git.ObjectID) error {
			if builds++; builds > 1 {
				return fault.New(fault.Exists, "it has failed")
			}
			return nil
		},
		func(x git.ObjectID) error {
			if x.IsZero() {
				return fault.New(fault.NotFound, "the earlier change was not made")
			}
			return nil
		},
	} {
		errs[i] = make(chan error, 1)
		go func() {
			_, err := r.change("app", write.Change{Build: func(_ context.Context, s write.State) (write.Plan, error) {
				x, err := s.Ref("refs/heads/x")
				return write.Plan{Updates: []receivepack.Update{{Ref: "refs/heads/x", Old: x, New: main}}},
					errors.Join(err, build(x))
			}})
			errs[i] <- err
		}()
		for <-begun; r.WaitingChanges(r.path("app")) < i; {
			time.Sleep(time.Millisecond)
		}
	}
	close(free)
	for i, want := range []fault.Kind{fault.Precondition, fault.Exists, fault.NotFound} {
		if err := <-errs[i]; !fault.Is(err, want) {
			t.Errorf("change %d: %v, want %v", i, err, want)
		}
	}
}

// Git makes a change at once if other repositories have all processes that change refs.
func TestWritesOfManyRepositories(t *testing.T) {
	t.Parallel()
	r := newWritten(t, receivepack.Options{})
	for i := range 6 { // there are 4 slots
		name, builds := fmt.Sprint("app", i), 0
		r.initAt(name + ".git")
		_, err := r.change(name, put("main", "first", "x"))
		r.do(err)
		second := put("main", "second", "x")
		build := second.Build
		second.Build = func(ctx context.Context, s write.State) (write.Plan, error) {
			builds++
			return build(ctx, s)
		}
		if _, err := r.change(name, second); err != nil || builds > 2 {
			t.Errorf("repository %d: built %d times, %v", i, builds, err)
		}
	}
}

// A merge is prepared before it waits for other changes.
func TestMergeIsPreparedBeforeOthersAreMade(t *testing.T) {
	t.Parallel()
	r := newWritten(t, receivepack.Options{})
	of := r.initAt("app.git")
	_, err := r.change("app", put("main", "first", "x"))
	r.do(err)
	of.Git("update-ref", "refs/heads/topic", of.CommitTree("topic", of.Git("ls-tree", "main"), of.ID("main")).String())
	begun, prepared, other := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := r.change("app", write.Change{Build: func(context.Context, write.State) (write.Plan, error) {
			close(begun)
			select {
			case <-prepared:
				return write.Plan{}, nil
			case <-time.After(10 * time.Second):
				return write.Plan{}, errors.New("the merge waits unprepared")
			}
		}})
		other <- err
	}()
	<-begun
	_, err = r.Merge(t.Context(), r.path("app"), storage.MergeRequest{Prepared: func() { close(prepared) },
		Request: merge.Request{Method: merge.FastForward, Target: "refs/heads/main", Source: merge.Source{Text: "topic"}}})
	r.do(err)
	r.do(<-other)
}

// BenchmarkCommits measures one-file commits to one branch by 32 callers, and by one.
func BenchmarkCommits(b *testing.B) {
	for _, callers := range []int{1, 32, -1, -8} { // negative: with git receive-pack, like pushes
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			r := newWritten(b, receivepack.Options{})
			of := r.initAt("app.git")
			if callers < 0 {
				callers = -callers
				of.Git("config", "receive.denyDeletes", "false")
			}
			if _, err := r.change("app", put("main", "first", "x")); err != nil {
				b.Fatal(err)
			}
			before := used()
			b.ResetTimer()
			var next atomic.Int64
			var group sync.WaitGroup
			for range callers {
				group.Go(func() {
					for i := next.Add(1); int(i) <= b.N; i = next.Add(1) {
						if _, err := r.change("app", put("main", fmt.Sprint("file", i%50), fmt.Sprint(i))); err != nil {
							b.Error(err)
						}
					}
				})
			}
			group.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commits/s")
			b.ReportMetric(float64((used()-before).Microseconds())/float64(b.N), "cpu-us/commit")
		})
	}
}

// used returns the CPU time of this process and of its Git processes that have ended.
func used() (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}

// Git is not asked again about the files of a commit on which a new branch builds: git update-ref changes the refs.
func TestWriteOfNewBranch(t *testing.T) {
	t.Parallel()
	r := newWritten(t, receivepack.Options{})
	of := r.initAt("app.git")
	start := of.CommitTree("start", "100644 blob "+of.Blob("*.o\n").String()+"\t.gitignore\n")
	of.Git("update-ref", "refs/heads/main", start.String())
	_, err := r.change("app", write.Change{Build: func(_ context.Context, s write.State) (write.Plan, error) {
		commit, objects, err := putFile(s, start, "a", "a")
		return write.Plan{Updates: []receivepack.Update{{Ref: "refs/heads/new", New: commit}}, Objects: objects}, err
	}})
	r.do(err)
	if !slices.ContainsFunc(r.runner.States(), func(s process.ClassState) bool {
		return s.Class == receivepack.ClassUpdate && s.Used == 1
	}) {
		t.Error("the change was made by git receive-pack")
	}
	of.Git("fsck", "--strict")
}
