package gittest

import (
	"encoding/binary"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Disk is a file system that can be stopped. Its callers then wait in the kernel, as for a disk that does not respond.
// Until then its root is an empty, read-only directory.
type Disk struct {
	Dir     string
	fd      int
	stopped atomic.Bool
	gone    atomic.Bool
	end     sync.Once
	ended   chan struct{}
}

// NewDisk mounts a Disk in a temporary directory until the end of the test. The test is skipped where it may not mount.
// NewDisk implements the kernel's protocol for FUSE itself (linux/fuse.h, version 7.31).
func NewDisk(t testing.TB) *Disk {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("SKIPPED: no disk can be stopped here: /dev/fuse: %v", err)
	}
	d := &Disk{Dir: t.TempDir(), fd: fd, ended: make(chan struct{})}
	if err := unix.Mount("packhorse-test", d.Dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV,
		"fd="+strconv.Itoa(fd)+",rootmode=40000,user_id=0,group_id=0,allow_other"); err != nil {
		unix.Close(fd)
		t.Skipf("SKIPPED: no disk can be stopped here: mount: %v", err)
	}
	go d.serve()
	t.Cleanup(func() {
		d.Release()
		_ = unix.Unmount(d.Dir, unix.MNT_DETACH)
	})
	return d
}

// Stop ends all responses.
func (d *Disk) Stop() { d.stopped.Store(true) }

// Release breaks the disk: current and later callers get an error.
func (d *Disk) Release() {
	d.end.Do(func() {
		d.gone.Store(true)
		<-d.ended
		unix.Close(d.fd)
	})
}

// Operations, as in the headers of requests.
const (
	fuseForget, fuseGetattr, fuseStatfs     = 2, 3, 17
	fuseInit, fuseOpendir, fuseReaddir      = 26, 27, 28
	fuseReleasedir, fuseAccess              = 29, 34
	fuseInterrupt, fuseDestroy, fuseForget2 = 36, 38, 42
	fuseLookup                              = 1
)

func (d *Disk) serve() {
	defer close(d.ended)
	request := make([]byte, 1<<18)
	for !d.gone.Load() {
		// ms: a read that waits keeps the descriptor open
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}, 20); n == 0 || err == unix.EINTR {
			continue
		}
		n, err := unix.Read(d.fd, request)
		if err == unix.EINTR || err == unix.EAGAIN || err == unix.ENOENT {
			continue
		}
		if err != nil || n < 40 { // ENODEV: it was taken away
			return
		}
		op := binary.NativeEndian.Uint32(request[4:])
		if d.stopped.Load() || op == fuseForget || op == fuseForget2 || op == fuseInterrupt {
			continue
		}
		body, errno := answer(op)
		reply := make([]byte, 16, 16+len(body))
		binary.NativeEndian.PutUint32(reply, uint32(16+len(body)))
		binary.NativeEndian.PutUint32(reply[4:], uint32(-int32(errno)))
		copy(reply[8:16], request[8:16])
		_, _ = unix.Write(d.fd, append(reply, body...)) // the caller may have left
	}
}

func answer(op uint32) (body []byte, errno syscall.Errno) {
	u32 := binary.NativeEndian.PutUint32
	u64 := binary.NativeEndian.PutUint64
	switch op {
	case fuseInit:
		body = make([]byte, 64)
		u32(body, 7)
		u32(body[4:], 31)
		u32(body[20:], 1<<16) // max_write
		return body, 0
	case fuseGetattr:
		body = make([]byte, 16+88) // valid for no time: each look asks again
		u64(body[16:], 1)
		u32(body[16+60:], unix.S_IFDIR|0o777)
		u32(body[16+64:], 2)
		u32(body[16+68:], uint32(os.Geteuid()))
		return body, 0
	case fuseOpendir:
		return make([]byte, 16), 0
	case fuseReaddir, fuseReleasedir, fuseDestroy:
		return nil, 0
	case fuseStatfs:
		body = make([]byte, 80)
		for i := range 5 {
			u64(body[8*i:], 1<<30)
		}
		u32(body[40:], 4096)
		u32(body[44:], 255)
		u32(body[48:], 4096)
		return body, 0
	case fuseLookup:
		return nil, unix.ENOENT
	case fuseAccess:
		return nil, unix.ENOSYS
	}
	return nil, unix.EROFS
}
