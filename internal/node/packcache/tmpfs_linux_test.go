package packcache

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// TestFullFileSystem runs itself again in a separate mount namespace, where a tmpfs of 4 MiB is the cache's
// directory.
func TestFullFileSystem(t *testing.T) {
	const variable = "PACKCACHE_TEST_TMPFS"
	if dir := os.Getenv(variable); dir != "" {
		testFullFileSystem(t, dir)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestFullFileSystem$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if _, ran := err.(*exec.ExitError); err != nil && !ran {
		t.Skipf("NOT TESTED: a full file system, for this user may not make a mount namespace: %v", err)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if bytes.Contains(out, []byte("NOT TESTED")) {
		t.Skipf("%s", out)
	}
}

func testFullFileSystem(t *testing.T, dir string) {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Skipf("NOT TESTED: %v", err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,nr_inodes=40"); err != nil {
		t.Skipf("NOT TESTED: %v", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	src := &fakeSource{size: 1_000_000}
	t.Run("space", func(t *testing.T) {
		c := newCache(t, src, Options{Dir: dir})
		for round := range 2 {
			for i := range 5 {
				s := spec(fmt.Sprint(i))
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() {
						p, err := c.Open(t.Context(), s)
						if err != nil {
							t.Error(err)
							return
						}
						finish(t, p, s, src)
					})
				}
				wg.Wait()
				c.settled(t)
				if info := fetch(t, c, s, src); info.Result != packsource.Hit {
					t.Errorf("round %d, pack %d: %v, want %v", round, i, info.Result, packsource.Hit)
				}
			}
		}
		if metric(c.m.evictions.WithLabelValues(evictSpace)) == 0 {
			t.Error("no entry was evicted, want some")
		}
		big := &fakeSource{size: 6_000_000}
		c.inner = big
		if info := fetch(t, c, spec("big"), big); info.Result != packsource.Uncached {
			t.Errorf("a pack larger than the file system: %v, want %v", info.Result, packsource.Uncached)
		}
	})
	t.Run("inodes", func(t *testing.T) {
		src := &fakeSource{size: 100}
		c := newCache(t, src, Options{Dir: dir})
		for i := range 60 {
			fetch(t, c, spec(fmt.Sprint("small", i)), src)
			c.settled(t)
		}
	})
}
