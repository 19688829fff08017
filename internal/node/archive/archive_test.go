package archive_test

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/archive"
	"github.com/packhorse-git/packhorse/internal/node/packcache"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// TestMain makes relative dates the same at all times, for the oracle.
func TestMain(m *testing.M) {
	os.Setenv("GIT_TEST_DATE_NOW", "0")
	os.Exit(m.Run())
}

// newMaker makes a Maker that runs a git program; "" is the system's. Without a cache it makes temporary files.
func newMaker(t *testing.T, program string, cached bool, change ...func(*process.Limits)) *archive.Maker {
	t.Helper()
	limits := process.Limits{Slots: 2, Queue: 100, Time: time.Minute}
	for _, f := range change {
		f(&limits)
	}
	runner, err := process.New(process.Options{Git: program, Classes: map[process.Class]process.Limits{
		archive.Class: limits, packsource.ClassPack: limits}})
	if err != nil {
		t.Fatal(err)
	}
	source, err := packsource.NewGit(runner, packsource.GitOptions{Scratch: t.TempDir() + "/scratch", Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	m := &archive.Maker{Runner: runner, GitDir: source.EmptyDir, Temp: t.TempDir()}
	if cached {
		m.Cache, err = packcache.Open(source, packcache.Options{Dir: t.TempDir(), MaxBytes: 1 << 30, MinFree: -1, Grace: -1})
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if m.Cache != nil {
			if err := m.Cache.Close(); err != nil {
				t.Error(err)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := runner.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return m
}

// specOf describes an archive of a commit.
func specOf(r *gittest.Repo, id git.ObjectID, format string) *archive.Spec {
	return &archive.Spec{Repo: packsource.Repository{Objects: filepath.Join(r.Dir, "objects"), Format: r.Format(),
		Incarnation: r.Dir}, Commit: id, Format: format}
}

// read returns an archive, and checks its checksum.
func read(t *testing.T, m *archive.Maker, s *archive.Spec) []byte {
	t.Helper()
	o, err := m.Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	b, err := io.ReadAll(io.NewSectionReader(o.File, 0, o.Size))
	if err != nil || sha256.Sum256(b) != o.SHA256 {
		t.Fatalf("archive of %d bytes: %v, SHA-256 %x, want %x", len(b), err, o.SHA256, sha256.Sum256(b))
	}
	return b
}

// hostile makes a repository whose configuration runs programs if git archive reads it, with odd names and modes.
func hostile(t *testing.T, format string) (r *gittest.Repo, ran string) {
	t.Helper()
	r = gittest.Init(t, "--object-format="+format)
	ran = filepath.Join(t.TempDir(), "ran")
	for key, value := range map[string]string{
		"filter.evil.smudge": "touch " + ran, "filter.evil.required": "true", "filter.evil.process": "touch " + ran,
		"tar.tar.command": "touch " + ran, "tar.tar.gz.command": "touch " + ran, "tar.tgz.command": "touch " + ran,
		"tar.umask": "0777", "core.autocrlf": "true", "core.pager": "touch " + ran, "alias.archive": "!touch " + ran,
		"diff.evil.textconv": "touch " + ran,
	} {
		r.Git("config", key, value)
	}
	blob := func(text string) string { return r.Blob(text).String() }
	sub := r.CommitTree("sub", "")
	attributes := "ignored export-ignore\nsub export-ignore\nsubst export-subst\ncrlf eol=crlf\n" +
		"*.evil filter=evil diff=evil\nlarge text eol=crlf\n" + strings.Repeat("x", 3000) + " text\n"
	inner := r.GitIn("100644 blob "+blob("deep\n")+"\t"+strings.Repeat("n", 130)+"\n100755 blob "+blob("#!/bin/sh\n")+
		"\trun\n040000 tree "+r.GitIn("100644 blob "+blob("x")+"\tsub\n", "mktree")+"\tsub\n", "mktree")
	id := r.CommitTree("odd", strings.Join([]string{
		"100644 blob " + blob(attributes) + "\t.gitattributes", "100644 blob " + blob("a\nb\n") + "\tcrlf",
		"100644 blob " + blob("secret") + "\tignored", "100644 blob " + blob("x") + "\tname.evil",
		"100644 blob " + blob("$Format:%H %h %an %d %ar %(describe)%<(9)%x41$ $Format:%<(2147483647)%s$ "+
			"$Format:%w(9,9,9)%b$") + "\tsubst",
		"120000 blob " + blob("../../etc/passwd") + "\tlink", "100644 blob " + blob("") + "\tempty",
		"160000 commit " + sub.String() + "\tmodule", "040000 tree " + inner + "\t" + strings.Repeat("d", 200),
		"100644 blob " + blob(strings.Repeat("line\n", 1<<20)) + "\tlarge", "100644 blob " + blob("q") + "\t\"\\001\\377\"",
	}, "\n")+"\n")
	r.Git("update-ref", "refs/heads/main", id.String())
	r.Git("update-ref", "refs/tags/v1", id.String())
	return r, ran
}

// oracle returns the output of git archive in a repository without configuration, with the same objects.
func oracle(t *testing.T, r *gittest.Repo, args ...string) string {
	t.Helper()
	bare := gittest.Init(t, "--object-format="+r.Format().String())
	alternates := filepath.Join(bare.Dir, "objects/info/alternates")
	if err := os.WriteFile(alternates, []byte(r.Dir+"/objects\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "out")
	bare.Git(append([]string{"-c", "core.abbrev=12", "archive", "-o", out}, args...)...)
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The tar stream is that of git, compressed or not, whatever the configuration of the repository.
func TestTarIsThatOfGit(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"sha1", "sha256"} {
		r, ran := hostile(t, format)
		m := newMaker(t, "", true)
		id := r.ID("main")
		want := oracle(t, r, "--format=tar", "--prefix=a b/", id.String())
		for _, kind := range archive.Formats {
			spec := specOf(r, id, kind)
			spec.Prefix = "a b/"
			got := read(t, m, spec)
			if again := read(t, m, spec); !bytes.Equal(got, again) {
				t.Errorf("%s: another archive from the cache", kind)
			}
			if kind == archive.Zip {
				compareZip(t, got, oracle(t, r, "--format=zip", "--prefix=a b/", id.String()))
			} else if unpacked(t, kind, got) != want {
				t.Errorf("%s %s: another tar stream than that of git", format, kind)
			}
		}
		some := specOf(r, id, archive.Tar)
		some.Paths = []string{strings.Repeat("d", 200) + "/", "link"}
		if string(read(t, m, some)) != oracle(t, r, "--format=tar", id.String(), "link", strings.Repeat("d", 200)) {
			t.Error("another tar stream than that of git for paths")
		}
		if _, err := os.Stat(ran); err == nil {
			t.Error("a program of the repository's configuration was run")
		}
	}
}

// unpacked decompresses an archive.
func unpacked(t *testing.T, format string, b []byte) string {
	t.Helper()
	r := io.Reader(bytes.NewReader(b))
	var err error
	switch format {
	case archive.Gzip:
		r, err = gzip.NewReader(r)
	case archive.Zstd:
		r, err = zstd.NewReader(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// compareZip compares the entries of two zip files.
func compareZip(t *testing.T, got []byte, want string) {
	t.Helper()
	entries := func(b []byte) (lines []string) {
		z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			kind := f.Mode().Type()
			if f.Mode()&0o111 != 0 {
				kind |= 0o111
			}
			lines = append(lines, fmt.Sprintf("%q %v %x", f.Name, kind, sha256.Sum256(content)))
		}
		return append(lines, "comment "+z.Comment)
	}
	if g, w := entries(got), entries([]byte(want)); !slices.Equal(g, w) {
		t.Errorf("zip files differ\ngot  %s\nwant %s", strings.Join(g, "\n     "), strings.Join(w, "\n     "))
	}
}

// The bytes do not depend on the version of git, on the cache, or on objects that come later.
func TestBytesAreTheSame(t *testing.T) {
	t.Parallel()
	r, _ := hostile(t, "sha1")
	id := r.ID("main")
	makers := map[string]*archive.Maker{"cached": newMaker(t, "", true), "uncached": newMaker(t, "", false)}
	if newer := os.Getenv("PACKHORSE_TEST_NEWER_GIT"); newer != "" {
		makers["newer git"] = newMaker(t, newer, true)
	}
	sums := map[string]string{}
	for name, m := range makers {
		for _, format := range archive.Formats {
			sum := fmt.Sprintf("%x", sha256.Sum256(read(t, m, specOf(r, id, format))))
			if before, ok := sums[format]; ok && before != sum {
				t.Errorf("%s: other bytes of %s", name, format)
			}
			sums[format] = sum
		}
		for i := range 40 {
			r.Commit(name + fmt.Sprint(i)) // git would abbreviate IDs to more digits
		}
	}
}

// Callers that want the same archive at the same time share one making.
func TestOneMaking(t *testing.T) {
	t.Parallel()
	r, _ := hostile(t, "sha1")
	m := newMaker(t, "", true)
	var all sync.WaitGroup
	var mu sync.Mutex
	results := map[packsource.Result]int{}
	for range 8 {
		all.Go(func() {
			o, err := m.Open(t.Context(), specOf(r, r.ID("main"), archive.Gzip))
			if err != nil {
				t.Error(err)
				return
			}
			defer o.Close()
			mu.Lock()
			results[o.Result]++
			mu.Unlock()
		})
	}
	all.Wait()
	if results[packsource.Miss] != 1 {
		t.Errorf("results of 8 equal requests: %v, want one miss", results)
	}
	if s := m.Cache.Stats(); s.Entries != 1 || s.Misses != 1 || s.Fills != 0 {
		t.Errorf("cache after 8 equal requests: %+v", s)
	}
}

// When the last caller goes, git ends, and nothing is left.
func TestCallersGo(t *testing.T) {
	t.Parallel()
	r, _ := hostile(t, "sha1")
	for _, cached := range []bool{true, false} {
		m := newMaker(t, "", cached)
		held := make(chan struct{})
		s := specOf(r, r.ID("main"), archive.Gzip)
		s.Repo.Hold = func(ctx context.Context) (func(), error) {
			close(held)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-held
			cancel()
		}()
		if _, err := m.Open(ctx, s); !fault.Is(err, fault.Cancelled) {
			t.Errorf("cached %v: Open of a caller that goes: %v", cached, err)
		}
		if files, err := os.ReadDir(m.Temp); len(files) > 0 || err != nil {
			t.Errorf("temporary files are left: %v, %v", files, err)
		}
		s.Repo.Hold = nil
		read(t, m, s)
	}
}

// An archive that cannot be made is an error, and the next request works.
func TestErrors(t *testing.T) {
	t.Parallel()
	r, _ := hostile(t, "sha1")
	for _, cached := range []bool{true, false} {
		m := newMaker(t, "", cached)
		missing := specOf(r, r.ID("main"), archive.Zip)
		missing.Paths = []string{"no such file"}
		if _, err := m.Open(t.Context(), missing); !fault.Is(err, fault.NotFound) ||
			!strings.Contains(fault.Message(err), "no such file") {
			t.Errorf("Open for a path that does not exist: %v", err)
		}
		missing.Paths = []string{"-o/tmp/x", "--output=x", ":(top)."}
		if _, err := m.Open(t.Context(), missing); !fault.Is(err, fault.NotFound) {
			t.Errorf("Open for paths that look like options: %v", err)
		}
		none := specOf(r, git.MustParseObjectID(strings.Repeat("1", 40)), archive.Tar)
		if _, err := m.Open(t.Context(), none); err == nil {
			t.Error("Open of a commit that does not exist: no error")
		}
		read(t, m, specOf(r, r.ID("main"), archive.Zip))
	}
	late := newMaker(t, "", true, func(l *process.Limits) { l.Time = time.Nanosecond })
	if _, err := late.Open(t.Context(), specOf(r, r.ID("main"), archive.Tar)); !fault.Is(err, fault.Deadline) {
		t.Errorf("Open after the time limit: %v", err)
	}
}

// The format %G? does not run gpg on the signature of a commit.
func TestNoSignatureCheck(t *testing.T) {
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	if err := os.WriteFile(filepath.Join(dir, "gpg"), []byte("#!/bin/sh\ntouch "+ran+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	r := gittest.Init(t)
	tree := r.GitIn("100644 blob "+r.Blob("a export-subst\n").String()+"\t.gitattributes\n100644 blob "+
		r.Blob("$Format:%G?$\n").String()+"\ta\n", "mktree")
	id := r.GitIn("tree "+strings.TrimSpace(tree)+"\nauthor a <> 1 +0000\ncommitter a <> 1 +0000\ngpgsig "+
		"-----BEGIN PGP SIGNATURE-----\n \n a\n -----END PGP SIGNATURE-----\n\nx\n", "hash-object", "-t", "commit", "-w",
		"--stdin")
	spec := specOf(r, git.MustParseObjectID(strings.TrimSpace(id)), archive.Tar)
	if text := read(t, newMaker(t, "", false), spec); !bytes.Contains(text, []byte("N\n")) {
		t.Errorf("archive %q", text)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("gpg was run")
	}
}

// An archive larger than the budget of the cache is refused, and leaves nothing.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	r, _ := hostile(t, "sha1")
	m := newMaker(t, "", false)
	cache, err := packcache.Open(nil, packcache.Options{Dir: t.TempDir(), MaxBytes: 1 << 20, MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	m.Cache = cache
	t.Cleanup(func() { cache.Close() })
	if _, err := m.Open(t.Context(), specOf(r, r.ID("main"), archive.Tar)); !fault.Is(err, fault.Full) {
		t.Errorf("Open of an archive larger than the cache: %v", err)
	}
	read(t, m, specOf(r, r.ID("main"), archive.Gzip))
	if s := cache.Stats(); s.Entries != 1 || s.Fills != 0 {
		t.Errorf("cache after a refusal: %+v", s)
	}
}

// The making of a tree with 10^10 files in a few objects ends with its time.
func TestBomb(t *testing.T) {
	t.Parallel()
	r := gittest.Init(t)
	line := "100644 blob " + r.Blob(strings.Repeat("x", 1<<20)).String() + "\t%d\n"
	for range 10 {
		var b strings.Builder
		for i := range 10 {
			fmt.Fprintf(&b, line, i)
		}
		line = "040000 tree " + r.GitIn(b.String(), "mktree") + "\t%d\n"
	}
	id := r.CommitTree("bomb", fmt.Sprintf(line, 0))
	m := newMaker(t, "", false, func(l *process.Limits) { l.Time = 500 * time.Millisecond })
	if _, err := m.Open(t.Context(), specOf(r, id, archive.Zstd)); !fault.Is(err, fault.Deadline) {
		t.Errorf("Open of a bomb: %v", err)
	}
}

// Choices of clients that could be options, or lead out of a directory.
func TestCheck(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "a/", "a b-1.0/x/", "-x", "--output=x"} {
		if err := archive.Check(nil, prefix, archive.Tar); err != nil {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
	for _, bad := range []string{"../", "a/../b/", "/etc/", "a\nb", "a\x00b", "..", ".", "a//b",
		strings.Repeat("x", 5000)} {
		if err := archive.Check(nil, bad, archive.Tar); !fault.Is(err, fault.Invalid) {
			t.Errorf("prefix %q: %v", bad, err)
		}
		if err := archive.Check([]string{"ok", bad}, "", archive.Tar); !fault.Is(err, fault.Invalid) ||
			!strings.Contains(fault.Message(err), "paths[1]") {
			t.Errorf("path %q: %v", bad, err)
		}
	}
	for _, paths := range [][]string{{""}, make([]string, 2000), slices.Repeat([]string{strings.Repeat("x", 4000)}, 20)} {
		if err := archive.Check(paths, "", archive.Tar); !fault.Is(err, fault.Invalid) {
			t.Errorf("%d paths: %v", len(paths), err)
		}
	}
	if err := archive.Check(nil, "", "tar.xz"); !fault.Is(err, fault.Invalid) {
		t.Errorf("format tar.xz: %v", err)
	}
}

// Archives of a real history are those of git archive. PACKHORSE_TEST_HISTORY names a repository.
func TestArchivesOfHistory(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("PACKHORSE_TEST_HISTORY")
	if dir == "" {
		t.Skip("PACKHORSE_TEST_HISTORY names no repository: archives of a real history are NOT tested here")
	}
	r, m := gittest.At(t, dir), newMaker(t, "", false)
	all := strings.Fields(r.Git("rev-list", "HEAD"))
	rnd := rand.New(rand.NewPCG(1, 0))
	for range 30 {
		id := all[rnd.IntN(len(all))]
		spec := specOf(r, git.MustParseObjectID(id), archive.Tar)
		if string(read(t, m, spec)) != oracle(t, r, "--format=tar", id) {
			t.Errorf("another archive of %s than that of git", id)
		}
		names := strings.Split(r.Git("ls-tree", "-t", "-r", "--name-only", "-z", id), "\x00")
		spec.Paths = []string{names[rnd.IntN(len(names)-1)]}
		if string(read(t, m, spec)) != oracle(t, r, "--format=tar", id, spec.Paths[0]) {
			t.Errorf("another archive of %s in %s than that of git", spec.Paths[0], id)
		}
	}
}
