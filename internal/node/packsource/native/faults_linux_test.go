package native_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node/packsource"
	"github.com/packhorse-git/packhorse/internal/node/packsource/sourcetest"
)

// history is a repository whose main moved several times. It has a Spec for each tip.
func history(t testing.TB, seed uint64, pushes int) (r *gittest.Repo, specs []*packsource.Spec) {
	r = gittest.Random(t, seed, gittest.Shape{})
	rnd := rand.New(rand.NewPCG(seed, 5))
	for range pushes {
		specs = append(specs, sourcetest.Full(r))
		shallow := *specs[len(specs)-1]
		shallow.Wants = append(shallow.Wants[:0:0], r.ID("main"))
		shallow.Shallow = shallow.Wants
		specs = append(specs, &shallow)
		r.Push(rnd, "main", "main", 2)
	}
	return r, specs
}

// TestEvictedWhileComposed has a cache with room for a few packs, so that packs are evicted while others are composed
// from them.
func TestEvictedWhileComposed(t *testing.T) {
	t.Parallel()
	r, specs := history(t, 1, 5)
	cache := newCache(t, t.TempDir(), 150<<10)
	var wg sync.WaitGroup
	var mu sync.Mutex // Check is for one goroutine
	for worker := range 3 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(worker), 6))
			for range 15 {
				spec := specs[rnd.IntN(len(specs))]
				var out sourcetest.Output
				p, err := cache.Open(t.Context(), spec)
				if err == nil {
					err = p.Send(t.Context(), &out)
					p.Close()
				}
				mu.Lock()
				if err != nil {
					t.Error(err)
				} else {
					sourcetest.Check(t, r, spec, out.Pack(t))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// The variables are set in a process that TestKilledWhileComposing and TestFullDisk start.
const (
	repositoryVariable = "NATIVE_TEST_REPOSITORY"
	cacheVariable      = "NATIVE_TEST_CACHE"
)

// child runs a test again in another process, with a cache in dir.
func child(t *testing.T, r *gittest.Repo, dir string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), repositoryVariable+"="+r.Dir, cacheVariable+"="+dir, "TMPDIR="+t.TempDir())
	return cmd
}

// isChild returns the repository and the directory of the cache in a process that was started with child.
func isChild(t *testing.T) (r *gittest.Repo, dir string, ok bool) {
	dir = os.Getenv(cacheVariable)
	return gittest.At(t, os.Getenv(repositoryVariable)), dir, dir != ""
}

// tipSpecs lists clones of the last commits of main.
func tipSpecs(r *gittest.Repo) (specs []*packsource.Spec) {
	for i := 7; i >= 0; i-- {
		spec := sourcetest.Full(r)
		spec.Wants = append(spec.Wants[:0:0], r.ID(fmt.Sprintf("main~%d", i)))
		specs = append(specs, spec)
	}
	return specs
}

// TestKilledWhileComposing kills a process that composes packs. The next one uses its cache.
func TestKilledWhileComposing(t *testing.T) {
	if r, dir, ok := isChild(t); ok {
		cache := newCache(t, dir, 1<<30)
		specs := tipSpecs(r) // without git processes later, which could hold the cache's lock for a moment after a kill
		for {
			for _, spec := range specs {
				sourcetest.Fetch(t, cache, spec)
				fmt.Println("made")
			}
			cache.DropAll()
		}
	}
	t.Parallel()
	r, _ := history(t, 2, 5)
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(2, 7))
	for range 4 {
		cmd := child(t, r, dir)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		for b := make([]byte, 100); !bytes.Contains(b, []byte("made")); {
			if _, err := out.Read(b); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Duration(rnd.IntN(20_000)) * time.Microsecond) // anywhere in a pack
		cmd.Process.Kill()
		cmd.Wait()
		cache := newCache(t, dir, 1<<30)
		for _, spec := range tipSpecs(r) {
			sourcetest.FetchAndCheck(t, cache, r, spec)
		}
		if err := cache.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDisk composes packs in a cache on a file system that is too small, in a mount namespace.
func TestFullDisk(t *testing.T) {
	if r, dir, ok := isChild(t); ok {
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			t.Skipf("NOT TESTED: %v", err)
		}
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=128k"); err != nil {
			t.Skipf("NOT TESTED: %v", err)
		}
		t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
		cache := newCache(t, dir, 1<<30)
		for range 3 {
			for _, spec := range tipSpecs(r) {
				sourcetest.FetchAndCheck(t, cache, r, spec)
			}
		}
		return
	}
	t.Parallel()
	r, _ := history(t, 3, 5)
	cmd := child(t, r, t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if _, ran := err.(*exec.ExitError); err != nil && !ran {
		t.Skipf("NOT TESTED: a full disk, for this user may not make a mount namespace: %v", err)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if bytes.Contains(out, []byte("NOT TESTED")) {
		t.Skipf("%s", out)
	}
}
