package spawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// canFork returns an error if this command cannot fork on this machine.
func canFork() error {
	if runtime.GOARCH == "s390x" { // its clone(2) has another order of arguments
		return errors.New("plain fork is not supported on this architecture: use --method spawn")
	}
	return nil
}

// forks starts children with plain fork(2), as Go did before version 1.9. It holds the lock that also protects the
// creation of descriptors, and a pipe reports when the child runs the program, or its error.
type forks struct {
	program    *byte
	argv, envp []*byte
	null       *os.File
	// copies limits the children that have not run the program yet. Each of them has a copy of this process's page tables.
	copies chan struct{}
}

// mostCopies is the maximum number of children with copies of the page tables. copiesShare is the maximum share of free
// memory for these copies.
const (
	mostCopies  = 1024
	copiesShare = 4
)

func newForks(git string, heap int64) (starter, error) {
	if err := canFork(); err != nil {
		return nil, err
	}
	path, err := exec.LookPath(git)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, fmt.Errorf("find the git program: %w", err)
	}
	f := &forks{}
	if f.program, err = syscall.BytePtrFromString(path); err != nil {
		return nil, err
	}
	if f.argv, err = syscall.SlicePtrFromStrings([]string{"git", "version"}); err != nil {
		return nil, err
	}
	if f.envp, err = syscall.SlicePtrFromStrings([]string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}); err != nil {
		return nil, err
	}
	if f.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	copies := int64(mostCopies)
	if free, ok := freeMemory(); ok && heap > 0 {
		copies = min(copies, max(1, free/copiesShare/(heap/pageTables+1)))
	}
	f.copies = make(chan struct{}, copies)
	return f, nil
}

func (f *forks) close() error { return f.null.Close() }

func (f *forks) start(ctx context.Context) (func() error, error) {
	select {
	case f.copies <- struct{}{}:
		defer func() { <-f.copies }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	pid, err := f.forkExec(ctx)
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	return func() error {
		process, err := os.FindProcess(pid)
		if err != nil {
			return err
		}
		state, err := process.Wait()
		if err == nil && !state.Success() {
			err = errors.New(state.String())
		}
		return err
	}, nil
}

// forkExec returns when the child runs the program. It starts no child if ctx ends while it waits for the lock.
func (f *forks) forkExec(ctx context.Context) (pid int, err error) {
	syscall.ForkLock.Lock()
	if err := ctx.Err(); err != nil {
		syscall.ForkLock.Unlock()
		return 0, err
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		syscall.ForkLock.Unlock()
		return 0, err
	}
	pid, errno := f.fork(p[1])
	syscall.ForkLock.Unlock()
	unix.Close(p[1])
	defer unix.Close(p[0])
	if errno != 0 {
		return 0, errno
	}
	var word [unsafe.Sizeof(errno)]byte
	n := 0
	for {
		if n, err = unix.Read(p[0], word[:]); err != unix.EINTR {
			break
		}
	}
	if err == nil && n == 0 {
		return pid, nil
	}
	var ws unix.WaitStatus
	for errors.Is(wait4(pid, &ws), unix.EINTR) {
	}
	if n == len(word) {
		return 0, *(*syscall.Errno)(unsafe.Pointer(&word))
	}
	return 0, errors.Join(err, errors.New("the child ended before it ran the program"))
}

func wait4(pid int, ws *unix.WaitStatus) error {
	_, err := unix.Wait4(pid, ws, 0, nil)
	return err
}

// fork makes the child, which runs the program or writes its error to the descriptor. The child has one thread, and the
// Go runtime is in an arbitrary state there. So the child makes only system calls.
//
//go:noinline
//go:norace
//go:nocheckptr
func (f *forks) fork(report int) (pid int, errno syscall.Errno) {
	var (
		null       = f.null.Fd()
		program    = uintptr(unsafe.Pointer(f.program))
		argv       = uintptr(unsafe.Pointer(unsafe.SliceData(f.argv)))
		envp       = uintptr(unsafe.Pointer(unsafe.SliceData(f.envp)))
		all, old   [2]uint64 // signal sets, of at least the kernel's size (rt_sigprocmask(2))
		size       = unsafe.Sizeof(all[0])
		child, why uintptr
	)
	all[0] = ^uint64(0)
	runtime.LockOSThread() // its signals are blocked, so that the runtime does not interrupt the child
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)),
		uintptr(unsafe.Pointer(&old)), size, 0, 0)
	child, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if child == 0 && errno == 0 {
		for fd := uintptr(0); fd <= 2; fd++ {
			if _, _, errno = syscall.RawSyscall(unix.SYS_DUP3, null, fd, 0); errno != 0 {
				goto failed
			}
		}
		unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, size, 0, 0)
		_, _, errno = syscall.RawSyscall(unix.SYS_EXECVE, program, argv, envp)
	failed:
		why = uintptr(errno)
		syscall.RawSyscall(unix.SYS_WRITE, uintptr(report), uintptr(unsafe.Pointer(&why)), unsafe.Sizeof(why))
		for {
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 127, 0, 0)
		}
	}
	unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, size, 0, 0)
	runtime.UnlockOSThread()
	runtime.KeepAlive(f)
	return int(child), errno
}

// enoughFiles refuses more children at once than this process has descriptors for.
func enoughFiles(goroutines int) error {
	const each, others = 8, 128 // pipes at both ends while a child starts; other descriptors of the process
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil
	}
	if need := uint64(goroutines*each + others); limit.Max < need {
		return fmt.Errorf("--goroutines %d: needs up to %d open files, and the limit is %d (ulimit -Hn)", goroutines,
			need, limit.Max)
	}
	return nil
}

// killFirst makes the kernel end this process before others when memory runs out.
func killFirst() { os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0) } //nolint:errcheck // as it is, then

// smallPages excludes memory from huge pages. With them page tables are 512 times smaller, and their number is not
// predictable.
func smallPages(b []byte) {
	page := os.Getpagesize()
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	if whole := (len(b) - skip) &^ (page - 1); whole > 0 {
		unix.Madvise(slices.Clip(b[skip:skip+whole]), unix.MADV_NOHUGEPAGE) //nolint:errcheck // a kernel without huge pages
	}
}
