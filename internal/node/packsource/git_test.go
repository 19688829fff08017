package packsource_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests here write programs and run them, so they are not parallel. A process that is forked at the same time would
// have the program open for writing, and exec would fail.

func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	write(t, path, "#!/bin/sh\n"+script+"\n")
	return path
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

var limits = process.Limits{Slots: 2, Queue: 10}

// unpack makes a repository of a pack.
func unpack(t *testing.T, pack []byte) *gittest.Repo {
	t.Helper()
	client := gittest.Init(t)
	client.GitIn(string(pack), "index-pack", "--stdin", "--fix-thin")
	return client
}

// TestGitRunsNoProgram has a repository name a program wherever git would run one.
func TestGitRunsNoProgram(t *testing.T) {
	s := sourcetest.FromGit(t, "", limits)
	r := gittest.Random(t, 1, gittest.Shape{})
	witness := filepath.Join(t.TempDir(), "ran")
	evil := program(t, "touch "+witness)
	fork := gittest.Init(t)
	write(t, filepath.Join(fork.Dir, "objects/info/alternates"), filepath.Join(r.Dir, "objects")+"\n")
	for _, repo := range []*gittest.Repo{r, fork} {
		for _, key := range []string{
			"core.fsmonitor", "uploadpack.packObjectsHook", "core.alternateRefsCommand", "core.sshCommand", "core.gitProxy",
			"core.pager",
			"core.editor", "core.askPass", "credential.helper", "gpg.program", "diff.external", "remote.origin.url",
		} {
			repo.Git("config", key, evil)
		}
		repo.Git("config", "core.hooksPath", filepath.Join(repo.Dir, "evil"))
		for _, hook := range []string{"post-index-change", "reference-transaction", "pre-auto-gc", "fsmonitor-watchman",
			"update", "post-checkout"} {
			write(t, filepath.Join(repo.Dir, "evil", hook), "#!/bin/sh\ntouch "+witness+"\n")
		}
		spec := sourcetest.Full(r)
		spec.Repo = sourcetest.Repository(repo)
		spec.Tags = []packsource.Tag{{ID: r.ID("v1"), Peeled: r.ID("v1^{}")}}
		sourcetest.Fetch(t, s, spec)
		// An object that is not there: no attempt to fetch it from a promisor.
		repo.Git("config", "core.repositoryFormatVersion", "1")
		repo.Git("config", "extensions.partialClone", "origin")
		spec.Wants = []git.ObjectID{git.MustParseObjectID(strings.Repeat("12", 20))}
		p, err := s.Open(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Send(t.Context(), new(sourcetest.Output)); !fault.Is(err, fault.Corrupt) {
			t.Errorf("an object that is not there: %v", err)
		}
		p.Close()
	}
	if _, err := os.Stat(witness); err == nil {
		t.Error("ran a program of the repository, want none")
	}
}

// TestGitUsesBitmaps checks git's statistics: it copies parts of a pack unchanged only with a bitmap.
func TestGitUsesBitmaps(t *testing.T) {
	s := sourcetest.FromGit(t, "", limits)
	r := gittest.Random(t, 1, gittest.Shape{})
	r.Git("repack", "-q", "-adb")
	p, err := s.Open(t.Context(), sourcetest.Full(r))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out sourcetest.Output
	if err := p.Send(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`pack-reused [1-9]`).Match(out.Text) {
		t.Errorf("no part of the pack was reused as it is:\n%s", out.Text)
	}
	info := p.Info()
	if info.Result != packsource.Uncached || info.Made.Source != packsource.SourceGit || info.Made.Write <= 0 {
		t.Errorf("Info() = %+v, want an uncached pack of git with its run time", info)
	}
}

// TestGitTrueHistory has replace refs and grafts in the served repository. A fetch ignores them, because a client would
// otherwise get another history. git's upload-pack also ignores replace refs.
func TestGitTrueHistory(t *testing.T) {
	s := sourcetest.FromGit(t, "", limits)
	r := gittest.Init(t)
	first := r.Commit("first")
	second := r.Commit("second", first)
	other := r.Commit("another second", first)
	r.Git("update-ref", "refs/heads/main", second.String())
	r.Git("replace", second.String(), other.String())
	write(t, filepath.Join(r.Dir, "info/grafts"), second.String()+"\n")
	client := unpack(t, sourcetest.Fetch(t, s, sourcetest.Full(r)))
	if text := client.Git("cat-file", "-p", second.String()+":file"); text != "second" {
		t.Errorf("the file is %q, want %q", text, "second")
	}
	if n := client.Git("rev-list", "--count", second.String()); n != "2" {
		t.Errorf("%s commits, want 2", n)
	}
}

// TestGitTags checks that only tags of the Spec are added, for any refs, and that a tag of a tag adds both.
func TestGitTags(t *testing.T) {
	s := sourcetest.FromGit(t, "", limits)
	r := gittest.Init(t)
	main := r.Commit("main")
	r.Git("update-ref", "refs/heads/main", main.String())
	for _, name := range []string{"seen", "hidden"} {
		r.Git("tag", "-a", "-m", name, name, "main")
	}
	r.Git("tag", "-a", "-m", "outer", "outer", "seen")
	spec := sourcetest.Full(r)
	spec.Tags = []packsource.Tag{{ID: r.ID("outer"), Peeled: main}}
	client := unpack(t, sourcetest.Fetch(t, s, spec))
	for name, want := range map[string]bool{"outer": true, "seen": true, "hidden": false} {
		if _, err := client.Try("cat-file", "-e", r.ID(name).String()); want != (err == nil) {
			t.Errorf("tag %s: %v", name, err)
		}
	}
}

// TestGitLeavesNothing checks that the repository and the scratch directory are unchanged after any result.
func TestGitLeavesNothing(t *testing.T) {
	scratch := filepath.Join(t.TempDir(), "scratch")
	write(t, filepath.Join(scratch, "tags-123.git/HEAD"), "left by one that was killed")
	runner, err := process.New(process.Options{Classes: map[process.Class]process.Limits{packsource.ClassPack: limits}})
	if err != nil {
		t.Fatal(err)
	}
	defer runner.Close(context.Background())
	s, err := packsource.NewGit(runner, packsource.GitOptions{Scratch: scratch})
	if err != nil {
		t.Fatal(err)
	}
	r := gittest.Random(t, 1, gittest.Shape{})
	before, empty := listing(t, r.Dir), listing(t, scratch)
	if strings.Contains(empty, "tags") {
		t.Errorf("not swept:\n%s", empty)
	}
	spec := sourcetest.Full(r)
	spec.Tags = []packsource.Tag{{ID: r.ID("v1"), Peeled: r.ID("v1^{}")}}
	sourcetest.Fetch(t, s, spec)
	bad := *spec
	bad.Wants = []git.ObjectID{git.MustParseObjectID(strings.Repeat("12", 20))}
	for _, send := range []bool{true, false} {
		p, err := s.Open(t.Context(), &bad)
		if err != nil {
			t.Fatal(err)
		}
		if send && p.Send(t.Context(), new(sourcetest.Output)) == nil {
			t.Error("Send without the wanted objects succeeded, want an error")
		}
		p.Close()
		p.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Open(ctx, spec); !fault.Is(err, fault.Cancelled) {
		t.Errorf("open: %v", err)
	}
	if after := listing(t, r.Dir); after != before {
		t.Errorf("the repository was\n%s\nand is\n%s", before, after)
	}
	if after := listing(t, scratch); after != empty {
		t.Errorf("the scratch directory was\n%s\nand is\n%s", empty, after)
	}
}

func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		size := info.Size()
		modified := info.ModTime()
		if path == dir { // temporary directories come and go in it
			size, modified = 0, modified.Truncate(1<<62)
		}
		fmt.Fprintln(&b, path, size, modified)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestGitSlow plays a git that thinks, then gives a part of the pack, then the rest: at each pause the reader hears of
// it. Each stage of the script begins when the reader has heard of the one before.
func TestGitSlow(t *testing.T) {
	dir := t.TempDir()
	stage := func(name string) string { return filepath.Join(dir, name) }
	await := func(name string) string { return "until [ -e " + stage(name) + " ]; do sleep 0.005; done\n" }
	s := sourcetest.FromGit(t, program(t, `git "$@" > `+stage("pack")+` 2>/dev/null
printf 'Thinking: 50%%\rThink' >&2
`+await("kept-alive")+`head -c 3000 `+stage("pack")+`
`+await("written")+`tail -c +3001 `+stage("pack")), limits)
	s.Hurry()
	r := gittest.Random(t, 1, gittest.Shape{Commits: 100})
	p, err := s.Open(t.Context(), sourcetest.Full(r))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out := slowOutput{Output: sourcetest.Output{Silence: 20 * time.Millisecond,
		OnWrite: func() error { write(t, stage("written"), ""); return nil }}}
	out.alive = func() { write(t, stage("kept-alive"), "") }
	if err := p.Send(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if string(out.Text) != "Thinking: 50%\r" {
		t.Errorf("progress %q", out.Text)
	}
	if got := unpack(t, out.Pack(t)); got.Git("cat-file", "-t", r.ID("main").String()) != "commit" {
		t.Error("got no pack, want one")
	}
}

type slowOutput struct {
	sourcetest.Output
	alive func()
}

func (o *slowOutput) KeepAlive() error { o.alive(); return o.Output.KeepAlive() }

// TestGitHeldOpen has a process outside the process group that holds the output open after git has ended.
func TestGitHeldOpen(t *testing.T) {
	holder := filepath.Join(t.TempDir(), "holder")
	s := sourcetest.FromGit(t, program(t, `setsid sleep 1000 2>/dev/null & echo $! >`+holder+`
until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done; git "$@"`), limits)
	t.Cleanup(func() {
		text, err := os.ReadFile(holder)
		pid, badPid := strconv.Atoi(strings.TrimSpace(string(text)))
		if err := cmp.Or(err, badPid); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	s.Hurry()
	p, err := s.Open(t.Context(), sourcetest.Full(gittest.Random(t, 1, gittest.Shape{})))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Send(t.Context(), new(sourcetest.Output)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("send: %v", err)
	}
}

// A filter that selects by paths has less time until the first byte of the pack than other packs.
func TestGitFilterTime(t *testing.T) {
	s := sourcetest.FromGit(t, program(t, "exec sleep 1000"), limits)
	s.Hurry()
	spec := sourcetest.Full(gittest.Random(t, 1, gittest.Shape{}))
	spec.Filter = "combine:tree:3+sparse:oid=" + spec.Wants[0].String()
	p, err := s.Open(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Send(t.Context(), new(sourcetest.Output)); !errors.Is(err, packsource.ErrFilterTime) {
		t.Errorf("send: %v", err)
	}
}

func TestGitExhausted(t *testing.T) {
	s := sourcetest.FromGit(t, program(t, "exec sleep 1000"), process.Limits{Slots: 1})
	spec := sourcetest.Full(gittest.Random(t, 1, gittest.Shape{}))
	p, err := s.Open(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	spec.Tags = []packsource.Tag{{ID: spec.Wants[0], Peeled: spec.Wants[0]}}
	if _, err := s.Open(t.Context(), spec); !fault.Is(err, fault.Exhausted) || fault.RetryAfter(err) == 0 {
		t.Errorf("open: %v", err)
	}
	p.Close()
}

func TestGitRelativePath(t *testing.T) {
	s := sourcetest.FromGit(t, "", limits)
	r := gittest.Random(t, 1, gittest.Shape{})
	t.Chdir(filepath.Dir(r.Dir))
	spec := sourcetest.Full(r)
	spec.Repo.Objects = filepath.Join(filepath.Base(r.Dir), "objects")
	sourcetest.Fetch(t, s, spec)
}

func TestGitSettings(t *testing.T) {
	s := sourcetest.FromGit(t, "", limits)
	a, b := git.MustParseObjectID(strings.Repeat("a", 40)), git.MustParseObjectID(strings.Repeat("b", 40))
	wants, other := []git.ObjectID{a}, []git.ObjectID{b}
	for _, test := range []struct {
		name       string
		spec       packsource.Spec
		has, hasNo string
	}{
		{"full", packsource.Spec{Wants: wants}, "pack.window=5", "pack.compression=3"},
		{"snapshot", packsource.Spec{Wants: wants, Shallow: wants}, "pack.window=0", ""},
		{"shallow", packsource.Spec{Wants: wants, Shallow: other}, "pack.window=1", ""},
		{"shallow", packsource.Spec{Wants: wants, Shallow: other}, "pack.compression=3", ""},
		{"shallow update", packsource.Spec{Wants: wants, Shallow: wants, Haves: other}, "pack.window=5", ""},
		{"filter", packsource.Spec{Wants: wants, Filter: "blob:none"}, "--filter=blob:none", "--thin"},
		{"tags", packsource.Spec{Wants: wants, Tags: []packsource.Tag{{ID: b, Peeled: a}}}, "--include-tag", ""},
	} {
		args := s.Arguments(&test.spec)
		if !slices.Contains(args, test.has) || test.hasNo != "" && slices.Contains(args, test.hasNo) {
			t.Errorf("%s: %q, want %s and not %q", test.name, args, test.has, test.hasNo)
		}
	}
}

// The memory settings of git fit into its limit.
func TestGitSettingsForMemory(t *testing.T) {
	s := sourcetest.FromGit(t, "", limits)
	spec := packsource.Spec{Wants: []git.ObjectID{git.MustParseObjectID(strings.Repeat("a", 40))}}
	for _, test := range []struct {
		memory  int64
		threads int
		has     []string
	}{
		{0, 1, []string{"pack.windowMemory=268435456"}},
		{64 << 20, 2, []string{"pack.windowMemory=8388608", "pack.deltaCacheSize=8388608", "core.deltaBaseCacheLimit=8388608",
			"core.bigFileThreshold=8388608"}},
		{64 << 30, 2, []string{"pack.windowMemory=268435456", "core.bigFileThreshold=536870912"}},
	} {
		s.Bound(test.memory, test.threads)
		args := s.Arguments(&spec)
		for _, want := range test.has {
			if !slices.Contains(args, want) {
				t.Errorf("%d bytes: %q, want %s", test.memory, args, want)
			}
		}
		if test.memory == 0 && slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "core.") }) {
			t.Errorf("without a limit: %q", args)
		}
	}
}

// Without a limit, half of the machine's memory is for the buffers of all slots.
func TestGitSettingsForMachine(t *testing.T) {
	s := sourcetest.FromGit(t, "", process.Limits{Slots: 4})
	spec := packsource.Spec{Wants: []git.ObjectID{git.MustParseObjectID(strings.Repeat("a", 40))}}
	for machine, want := range map[int64][]string{
		0: {"pack.windowMemory=268435456"},
		// 64 MiB a slot, of which a quarter is for the windows of two threads
		512 << 20: {"pack.windowMemory=8388608", "pack.deltaCacheSize=8388608"},
		64 << 30:  {"pack.windowMemory=268435456"},
	} {
		s.Bound(0, 2)
		s.On(machine)
		args := s.Arguments(&spec)
		for _, arg := range args {
			if memory := strings.HasPrefix(arg, "pack.windowMemory=") ||
				strings.HasPrefix(arg, "pack.deltaCacheSize="); memory && !slices.Contains(want, arg) {
				t.Errorf("on a machine with %d: %s", machine, arg)
			}
		}
		for _, one := range want {
			if !slices.Contains(args, one) {
				t.Errorf("on a machine with %d: %q, want %s", machine, args, one)
			}
		}
	}
}

// A git that fails before its first output is distinguished from one that dies later, and its message is in the log.
func TestGitFailsAtOnce(t *testing.T) {
	spec := sourcetest.Full(gittest.Random(t, 1, gittest.Shape{}))
	for _, test := range []struct {
		script, says string
		kind         fault.Kind
	}{
		{"exec >&-; sleep 0.1; echo fatal: out of luck >&2; exit 128", "exit 128: fatal: out of luck", fault.Internal},
		{"exec >&-; sleep 0.1; kill -9 $$", "signal: killed", fault.Unavailable},
		{"exec >&-; exit 0", "returned no valid pack", fault.Internal},
		{"exec >&-; exec sleep 1000", "returned no valid pack", fault.Internal},
	} {
		s := sourcetest.FromGit(t, program(t, test.script), limits)
		s.Hurry()
		p, err := s.Open(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		err = p.Send(t.Context(), &sourcetest.Output{})
		if fault.KindOf(err) != test.kind || !strings.Contains(fmt.Sprint(err), test.says) {
			t.Errorf("%s: %v (%v), want %q (%v)", test.script, err, fault.KindOf(err), test.says, test.kind)
		}
		p.Close()
	}
}
