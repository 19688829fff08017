package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/packhorse-git/packhorse/internal/fault"
	"golang.org/x/sys/unix"
)

// Mapping is a file that is mapped for reading, and that other programs may truncate. It is unmapped when the last
// reference to it is collected, so that no reader can outlive it. It is safe for concurrent use.
//
// A read beyond the end of a mapped file that has shrunk raises SIGBUS, which would kill the server. So the bytes are
// only reachable inside Do, which turns the fault into an error of kind fault.Corrupt. A page fault also blocks a
// scheduler thread; map indexes, the commit-graph and packed-refs, never packs.
type Mapping struct {
	data []byte
	name string
}

// MapFile maps the whole file at path. An empty file maps to no bytes.
func MapFile(path string) (*Mapping, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Map(f)
}

// Map maps the whole of f, which may be closed afterwards.
func Map(f *os.File) (*Mapping, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, unfit(f, "not a regular file")
	}
	m := &Mapping{name: f.Name()}
	size := info.Size()
	if size == 0 {
		return m, nil
	}
	if int64(int(size)) != size {
		return nil, unfit(f, "too large to map")
	}
	if m.data, err = unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	runtime.AddCleanup(m, func(data []byte) { _ = unix.Munmap(data) }, m.data)
	return m, nil
}

// unfit returns an error for a file that cannot be mapped. The path is for the log only.
func unfit(f *os.File, what string) error {
	return fault.Wrap(fault.Corrupt, "a file of the repository cannot be mapped", fmt.Errorf("%s: %s", f.Name(), what))
}

// Len is the mapping's length in bytes, fixed when it was mapped.
func (m *Mapping) Len() int { return len(m.data) }

// Name is the path that was mapped.
func (m *Mapping) Name() string { return m.name }

// Do calls fn with the mapping's bytes, which are valid only during the call. If the file was truncated and fn reads
// behind its end, Do returns an error of kind Corrupt.
func (m *Mapping) Do(fn func(b []byte) error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		runtime.KeepAlive(m)
		if r := recover(); r != nil {
			err = recovered(m.name, r)
		}
	}()
	return fn(m.data)
}

// GuardMapped calls fn, which reads the bytes of mappings in another goroutine than that of Mapping.Do. The call of Do
// may have ended, but the caller keeps a reference to each Mapping. Errors are those of Do.
func GuardMapped(fn func() error) (err error) {
	old := debug.SetPanicOnFault(true) // it is a setting of the goroutine
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			err = recovered("a mapping", r)
		}
	}()
	return fn()
}

// recovered turns a memory fault into an error and raises any other panic again.
func recovered(name string, r any) error {
	if rerr, ok := r.(runtime.Error); ok {
		if _, isFault := errors.AsType[interface {
			error
			Addr() uintptr
		}](rerr); isFault {
			return fault.Wrap(fault.Corrupt, "a file of the repository was truncated while it was read",
				fmt.Errorf("%s: %w", name, io.ErrUnexpectedEOF))
		}
	}
	panic(r)
}
