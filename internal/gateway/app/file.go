package app

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
)

// budget bounds the bytes of all requests together.
type budget struct {
	limit int64
	used  atomic.Int64
}

// reserve takes n bytes, or none.
func (b *budget) reserve(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) release(n int64) { b.used.Add(-n) }

const copySize = 64 << 10

// bufferPool holds buffers of copySize bytes. It implements httputil.BufferPool.
type bufferPool struct{ pool sync.Pool }

// Get returns a buffer.
func (b *bufferPool) Get() []byte {
	if buffer, ok := b.pool.Get().(*[copySize]byte); ok {
		return buffer[:]
	}
	return make([]byte, copySize)
}

// Put gives a buffer back; nil: none.
func (b *bufferPool) Put(buffer []byte) {
	if len(buffer) == copySize {
		b.pool.Put((*[copySize]byte)(buffer))
	}
}

// errDisk is wrapped in the errors of files.
var errDisk = errors.New("storing a body in a file")

const (
	fileStep   = 1 << 20  // a file takes so much of the budget at a time
	filePrefix = "relay-" // of the names that files have for a moment
)

// openDir makes the directory for files and removes what a killed server has left there.
func openDir(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory for long bodies: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading the directory for long bodies: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), filePrefix) && entry.Type().IsRegular() {
			err = errors.Join(err, os.Remove(filepath.Join(dir, entry.Name())))
		}
	}
	return err
}

// file is a file without a name. It is gone with the process. Not safe for concurrent use.
type file struct {
	p        *Proxy
	f        *os.File
	size     int64
	reserved int64 // of Proxy.disk
}

// append writes b at the end. The error is errFull, or wraps errDisk.
func (f *file) append(b []byte) error {
	for f.reserved < f.size+int64(len(b)) {
		if f.p.Bodies.Dir == "" || !f.p.disk.reserve(fileStep) {
			return errFull
		}
		f.reserved += fileStep
	}
	if f.f == nil {
		made, err := os.CreateTemp(f.p.Bodies.Dir, filePrefix)
		if err != nil {
			return fmt.Errorf("%w: %w", errDisk, err)
		}
		f.f = made
		// the next process may have removed it
		if err := os.Remove(made.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: %w", errDisk, err)
		}
	}
	n, err := f.f.WriteAt(b, f.size)
	if err != nil {
		return fmt.Errorf("%w: %w", errDisk, err)
	}
	f.size += int64(n)
	return nil
}

// read reads at an offset before the end.
func (f *file) read(b []byte, at int64) (int, error) {
	n, err := f.f.ReadAt(b[:min(int64(len(b)), f.size-at)], at)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errDisk, err)
	}
	return n, nil
}

// clear empties the file.
func (f *file) clear() error {
	f.p.disk.release(f.reserved)
	f.reserved, f.size = 0, 0
	if err := f.f.Truncate(0); err != nil {
		return fmt.Errorf("%w: %w", errDisk, err)
	}
	return nil
}

func (f *file) close() {
	f.p.disk.release(f.reserved)
	f.reserved = 0
	if f.f != nil {
		f.f.Close()
	}
}

// logDiskError logs, at most once a minute, that files cannot be written.
func (p *Proxy) logDiskError(message string, err error) {
	p.diskLog.Do(func() { p.Log.Warn(message, "dir", p.Bodies.Dir, "error", err) })
}
