// Package sourcetest holds what every packsource.Source must do: one suite, run over each of them. For tests only.
package sourcetest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/process"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// Make creates the Source under test with a git program: a path, or "" for the real one. It returns nil if the Source
// does not run the program. The resources of the Source end with t.
type Make func(t testing.TB, program string) packsource.Source

// FromGit returns a packsource.Git with a new runner, for a Make.
func FromGit(t testing.TB, program string, l process.Limits) *packsource.Git {
	t.Helper()
	runner, err := process.New(process.Options{Git: program,
		Classes: map[process.Class]process.Limits{packsource.ClassPack: l}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := runner.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	g, err := packsource.NewGit(runner, packsource.GitOptions{Scratch: filepath.Join(t.TempDir(), "scratch")})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// RunPacks checks the packs of a Source against git's idea of them.
func RunPacks(t *testing.T, newSource Make) {
	t.Run("shapes", func(t *testing.T) { testShapes(t, newSource) })
	t.Run("random", func(t *testing.T) { testRandom(t, newSource) })
	t.Run("adversarial", func(t *testing.T) { testAdversarial(t, newSource) })
	t.Run("damage", func(t *testing.T) { testDamage(t, newSource) })
	t.Run("partial clone", func(t *testing.T) { testPartial(t, newSource(t, "")) })
	t.Run("replaced objects", func(t *testing.T) { testReplaced(t, newSource(t, "")) })
	t.Run("vanishing packs", func(t *testing.T) { testVanishing(t, newSource(t, "")) })
}

// Run checks the rest of a Source's contract: its errors, its concurrency and its end. It is not to be run beside other
// tests: it writes programs and runs them.
func Run(t *testing.T, newSource Make) {
	programs := writeFaults(t)
	r := repository(t)
	t.Run("concurrent", func(t *testing.T) { testConcurrent(t, newSource(t, ""), r) })
	t.Run("cancel", func(t *testing.T) { testCancel(t, newSource(t, ""), Full(r)) })
	t.Run("output fails", func(t *testing.T) { testOutputFails(t, newSource(t, ""), r) })
	t.Run("close unsent", func(t *testing.T) { testCloseUnsent(t, newSource(t, ""), Full(r)) })
	t.Run("missing want", func(t *testing.T) { testMissing(t, newSource(t, ""), r) })
	for name := range faults {
		t.Run(name, func(t *testing.T) {
			s := newSource(t, programs[name])
			switch {
			case s == nil:
				t.Skip("the source does not run git")
			case name == "hangs":
				testCancel(t, s, Full(r))
				testCloseUnsent(t, s, Full(r))
			default:
				testFault(t, s, Full(r))
			}
		})
	}
}

// Output collects what a Pack sends.
type Output struct {
	Framed     []byte
	Text       []byte
	Silence    time.Duration // what KeepAliveAfter says
	KeepAlives int
	OnWrite    func() error // called after each Write
}

func (o *Output) Write(p []byte) (int, error) {
	o.Framed = append(o.Framed, p...)
	if o.OnWrite != nil {
		return len(p), o.OnWrite()
	}
	return len(p), nil
}

// Progress keeps the text.
func (o *Output) Progress(text []byte) error {
	o.Text = append(o.Text, text...)
	return nil
}

// KeepAliveAfter is as was set.
func (o *Output) KeepAliveAfter() time.Duration { return o.Silence }

// KeepAlive counts.
func (o *Output) KeepAlive() error {
	o.KeepAlives++
	return nil
}

// Pack takes the framing off; packets that are not of side-band 1 fail the test.
func (o *Output) Pack(t testing.TB) []byte {
	t.Helper()
	var pack []byte
	for r := pktline.NewReader(bytes.NewReader(o.Framed)); ; {
		typ, p, err := r.Next()
		if err != nil {
			if len(pack) > 0 || len(o.Framed) == 0 {
				return pack
			}
			t.Fatal(err)
		}
		if typ != pktline.Data || len(p) < 2 || pktline.Band(p[0]) != pktline.BandData {
			t.Fatalf("a %v packet of %d bytes: %.20q", typ, len(p), p)
		}
		pack = append(pack, p[1:]...)
	}
}

// Fetch makes a pack and returns its bytes.
func Fetch(t testing.TB, s packsource.Source, spec *packsource.Spec) []byte {
	t.Helper()
	pack, _ := FetchWithInfo(t, s, spec)
	return pack
}

// FetchWithInfo makes a pack and returns its bytes and its Info.
func FetchWithInfo(t testing.TB, s packsource.Source, spec *packsource.Spec) ([]byte, packsource.Info) {
	t.Helper()
	p, err := s.Open(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	size := p.Size()
	var out Output
	if err := p.Send(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	info := p.Info()
	if info.Bytes != int64(len(out.Framed)) || size >= 0 && size != info.Bytes {
		t.Errorf("%d bytes sent; Size returned %d, Info has %d", len(out.Framed), size, info.Bytes)
	}
	pack := out.Pack(t)
	if err := whole(spec.Repo.Format, pack); err != nil {
		t.Fatal(err)
	}
	checkInfo(t, spec, info, pack)
	return pack, info
}

// checkInfo compares the complete Info with the pack.
func checkInfo(t testing.TB, spec *packsource.Spec, info packsource.Info, pack []byte) {
	t.Helper()
	if n := binary.BigEndian.Uint32(pack[8:]); info.Objects != n || info.Result == "" {
		t.Errorf("Info is %+v, the pack has %d objects", info, n)
	}
	m := info.Made
	if m.Source != "native" {
		return
	}
	objects := m.ReusedDisk.Objects + m.ReusedCache.Objects + m.Encoded.Objects
	size := m.ReusedDisk.Bytes + m.ReusedCache.Bytes + m.Encoded.Bytes
	entries := int64(len(pack) - packHeader - spec.Repo.Format.Size())
	if objects != int64(info.Objects) || size != entries {
		t.Errorf("Made is %+v: %d objects and %d bytes, want %d and %d", m, objects, size, info.Objects, entries)
	}
}

// packHeader is the length of a pack's header.
const packHeader = 12

// whole reports whether the bytes are a pack with the right checksum.
func whole(format git.ObjectFormat, pack []byte) error {
	n := len(pack) - format.Size()
	if n < packHeader || string(pack[:4]) != "PACK" {
		return fmt.Errorf("no pack: %d bytes, %.12q", len(pack), pack)
	}
	h := format.New()
	h.Write(pack[:n])
	if !bytes.Equal(h.Sum(nil), pack[n:]) {
		return errors.New("the checksum does not fit the pack")
	}
	return nil
}

// faults are ways of git to fail, as shell scripts that run the real one.
var faults = map[string]string{
	"hangs":                 `git "$@" | { head -c 3000; exec sleep 1000; }`,
	"fails after the pack":  `git "$@"; exit 1`,
	"fails in the pack":     `git "$@" | head -c 3000; exit 1`,
	"killed in the pack":    `git "$@" | head -c 3000; kill -9 $$`,
	"killed after the pack": `git "$@"; kill -9 $$`,
	"fails at once":         `echo "fatal: no luck" >&2; exit 128`,
	"ends at once":          `exit 0`,
	"ends in the header":    `git "$@" | head -c 10`,
	"gives no pack":         `echo "this is not a pack, however long it may be made to look like one"`,
}

func writeFaults(t *testing.T) map[string]string {
	t.Helper()
	programs := make(map[string]string)
	dir := t.TempDir()
	for name, script := range faults {
		programs[name] = filepath.Join(dir, name)
		if err := os.WriteFile(programs[name], []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return programs
}

// repository is one with packs of some size, for tests that interrupt.
func repository(t *testing.T) *gittest.Repo {
	t.Helper()
	r := gittest.Random(t, 1, gittest.Shape{Commits: 100})
	random := make([]byte, 8<<20) // no buffer holds it
	rand.NewChaCha8([32]byte{}).Read(random)
	big := r.CommitTree("big", fmt.Sprintf("100644 blob %v\tbig\n", r.Blob(string(random))), r.ID("main"))
	r.Git("update-ref", "refs/heads/big", big.String())
	r.Git("repack", "-qad")
	return r
}

// Full is the spec of a clone of all branches.
func Full(r *gittest.Repo) *packsource.Spec {
	spec := &packsource.Spec{Repo: Repository(r), Offset: true, Thin: true}
	for _, id := range ids(r.Git("for-each-ref", "--format=%(objectname)", "refs/heads")) {
		spec.Wants = append(spec.Wants, id)
	}
	spec.Wants = sorted(spec.Wants)
	return spec
}

// Repository returns the location of r's objects.
func Repository(r *gittest.Repo) packsource.Repository {
	return packsource.Repository{Objects: filepath.Join(r.Dir, "objects"), Format: r.Format(), Incarnation: r.Dir}
}

func testConcurrent(t *testing.T, s packsource.Source, r *gittest.Repo) {
	full := Full(r)
	var specs []*packsource.Spec
	for i := range full.Wants {
		one := *full
		one.Wants = full.Wants[i : i+1]
		specs = append(specs, &one)
	}
	specs = append(specs, full)
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			spec := specs[i%len(specs)]
			p, err := s.Open(t.Context(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			var out Output
			if err := p.Send(t.Context(), &out); err != nil {
				t.Error(err)
			} else if err := whole(spec.Repo.Format, out.Pack(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	FetchAndCheck(t, s, r, full)
}

func testCancel(t *testing.T, s packsource.Source, spec *packsource.Spec) {
	for _, which := range []string{"open", "send"} {
		open, cancelOpen := context.WithCancel(t.Context())
		send, cancelSend := context.WithCancel(t.Context())
		p, err := s.Open(open, spec)
		if err != nil {
			t.Fatal(err)
		}
		var out Output
		out.OnWrite = func() error {
			if which == "open" {
				cancelOpen()
			} else {
				cancelSend()
			}
			return nil
		}
		began := time.Now()
		err = p.Send(send, &out)
		if !fault.Is(err, fault.Cancelled) || whole(spec.Repo.Format, out.Pack(t)) == nil {
			t.Errorf("%s cancelled: %v after %d bytes", which, err, len(out.Framed))
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > 10*time.Second {
			t.Errorf("%s cancelled: took %v", which, d)
		}
		cancelOpen()
		cancelSend()
	}
}

func testOutputFails(t *testing.T, s packsource.Source, r *gittest.Repo) {
	spec := Full(r)
	p, err := s.Open(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("the connection broke")
	out := Output{OnWrite: func() error { return broken }}
	if err := p.Send(t.Context(), &out); !errors.Is(err, broken) {
		t.Errorf("send: %v", err)
	}
	p.Close()
	FetchAndCheck(t, s, r, spec)
}

func testCloseUnsent(t *testing.T, s packsource.Source, spec *packsource.Spec) {
	p, err := s.Open(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// testFault makes git fail: Send has to return an error, and the bytes sent before must not be a complete pack.
func testFault(t *testing.T, s packsource.Source, spec *packsource.Spec) {
	for range 2 { // a failure is not cached
		p, err := s.Open(t.Context(), spec)
		if err != nil {
			continue
		}
		var out Output
		if err := p.Send(t.Context(), &out); err == nil || fault.Is(err, fault.Cancelled) {
			t.Errorf("send: %v", err)
		}
		if whole(spec.Repo.Format, out.Pack(t)) == nil {
			t.Error("a whole pack was sent although git failed")
		}
		p.Close()
	}
}

func testMissing(t *testing.T, s packsource.Source, r *gittest.Repo) {
	spec := Full(r)
	spec.Wants = []git.ObjectID{git.MustParseObjectID("1234567890123456789012345678901234567890")}
	p, err := s.Open(t.Context(), spec)
	if err != nil {
		return
	}
	defer p.Close()
	var out Output
	if err := p.Send(t.Context(), &out); err == nil {
		t.Error("a pack of an object that is not there")
	} else if bytes.Contains([]byte(fault.Message(err)), []byte(r.Dir)) {
		t.Errorf("the message has the location of the repository: %s", fault.Message(err))
	}
}
