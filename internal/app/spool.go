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
	"time"
)

// budget bounds bytes, of all requests together.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take takes n, or nothing.
func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// buffer is from a pool, for copies.
func (p *Proxy) buffer() *[copySize]byte {
	if b, ok := p.buffers.Get().(*[copySize]byte); ok {
		return b
	}
	return new([copySize]byte)
}

func (p *Proxy) giveBuffer(b *[copySize]byte) {
	if b != nil {
		p.buffers.Put(b)
	}
}

// errDisk is in what a file failed with, but for a full disk.
var errDisk = errors.New("a file for what is being relayed")

// fileStep is how much of the budget a file takes at a time.
const fileStep = 1 << 20

// filePrefix begins the names that files have for a moment.
const filePrefix = "relay-"

// openDir makes the directory for files, and removes what a server that was killed has left there.
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

// file is a file without a name, which nobody else can open, and which is gone with the process. Not safe for concurrent use, but that one goroutine
// may read what another has appended.
type file struct {
	p     *Proxy
	f     *os.File
	size  int64
	taken int64 // of the budget
}

// append writes p at the end. It fails with errFull, the error of a full disk, or errDisk.
func (f *file) append(p []byte) error {
	for f.taken < f.size+int64(len(p)) {
		if f.p.Dir == "" || !f.p.disk.take(fileStep) {
			return errFull
		}
		f.taken += fileStep
	}
	if f.f == nil {
		made, err := os.CreateTemp(f.p.Dir, filePrefix)
		if err != nil {
			return fmt.Errorf("%w: %w", errDisk, err)
		}
		f.f = made
		if err := os.Remove(made.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) { // the next process may have swept it
			return fmt.Errorf("%w: %w", errDisk, err)
		}
	}
	n, err := f.f.WriteAt(p, f.size)
	if err != nil {
		return fmt.Errorf("%w: %w", errDisk, err)
	}
	f.size += int64(n)
	f.p.spooled.Add(int64(n))
	return nil
}

// read reads at an offset before the end.
func (f *file) read(p []byte, at int64) (int, error) {
	n, err := f.f.ReadAt(p[:min(int64(len(p)), f.size-at)], at)
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, fmt.Errorf("%w: %w", errDisk, err)
	}
	return n, nil
}

// clear empties it.
func (f *file) clear() error {
	f.p.disk.give(f.taken)
	f.taken, f.size = 0, 0
	if err := f.f.Truncate(0); err != nil {
		return fmt.Errorf("%w: %w", errDisk, err)
	}
	return nil
}

func (f *file) close() {
	f.p.disk.give(f.taken)
	f.taken = 0
	if f.f != nil {
		f.f.Close()
		f.f = nil
	}
}

// spool is what has come of an answer and has not gone to the client: in memory and then, while that is full, in a file. One goroutine fills it, and
// one drains it.
type spool struct {
	p     *Proxy
	limit int64 // of the file, in bytes

	mu      sync.Mutex
	ring    []byte
	in, out int64 // bytes that went into the ring, and out of it
	file    file
	read    int64 // up to where the file was read: all of it is behind what is in the ring
	noFile  bool
	ended   bool
	err     error // io.EOF: all came
	stopped bool  // nobody drains it any more
	spooled int64
	scratch *[copySize]byte // of who drains it

	more, room chan struct{} // signals for the one who waits
}

// leastRing is the memory of an answer that streams, of which little waits, and of each one when there is no more.
const leastRing = 16 << 10

func newSpool(p *Proxy, streams bool) *spool {
	s := &spool{p: p, limit: p.MaxAnswer, file: file{p: p}, noFile: p.Dir == "", more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	if streams || !p.memory.take(p.Memory) {
		s.ring = make([]byte, leastRing)
	} else if ring, ok := p.rings.Get().(*[]byte); ok {
		s.ring = *ring
	} else {
		s.ring = make([]byte, p.Memory)
	}
	return s
}

// close gives back what the spool takes. Nobody uses it any more.
func (s *spool) close() {
	s.file.close()
	s.p.giveBuffer(s.scratch)
	if len(s.ring) > leastRing {
		s.p.rings.Put(&s.ring)
		s.p.memory.give(s.p.Memory)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// space waits for room for what comes next: a part of the ring, or none, for then it is the file that has room for copySize. false: nobody wants it.
func (s *spool) space() (ring []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.stopped {
			return nil, false
		}
		inFile := s.file.size > s.read
		if held := s.in - s.out; !inFile && held < int64(len(s.ring)) {
			at := s.in % int64(len(s.ring))
			return s.ring[at:min(int64(len(s.ring)), at+int64(len(s.ring))-held)], true
		}
		if !s.noFile && s.file.size+copySize <= s.limit {
			return nil, true
		}
		s.mu.Unlock()
		<-s.room
		s.mu.Lock()
	}
}

// put says that n bytes were put into what space gave.
func (s *spool) put(n int) {
	s.mu.Lock()
	s.in += int64(n)
	s.mu.Unlock()
	signal(s.more)
}

// write adds bytes, at most copySize. Where there is no room for them on disk, it waits until there is some in memory.
func (s *spool) write(p []byte) {
	for len(p) > 0 {
		ring, ok := s.space()
		switch {
		case !ok:
			return
		case ring == nil:
			if s.spill(p) {
				p = nil
			}
		default:
			n := copy(ring, p)
			s.put(n)
			p = p[n:]
		}
	}
}

// spill puts bytes into the file; false: there is no room, and from now on what comes waits for the client.
func (s *spool) spill(p []byte) bool {
	s.mu.Lock()
	err := s.file.append(p)
	if s.noFile = err != nil; err == nil {
		s.spooled += int64(len(p))
	}
	s.mu.Unlock()
	signal(s.more)
	if err != nil && err != errFull { // that is Options.MaxDir's
		s.p.complain("answers of application workers wait for their clients, and the workers with them: they cannot be written to a file", err)
	}
	return err == nil
}

// complain logs that files cannot be written, and what of it, once a minute.
func (p *Proxy) complain(what string, err error) {
	last, now := p.complained.Load(), time.Now().UnixNano()
	if (last == 0 || now-last >= int64(time.Minute)) && p.complained.CompareAndSwap(last, now) {
		p.Log.Warn(what, "dir", p.Dir, "error", err)
	}
}

// end says that nothing more comes, with io.EOF if that is all.
func (s *spool) end(err error) {
	s.mu.Lock()
	s.ended, s.err = true, err
	s.mu.Unlock()
	signal(s.more)
}

// stop says that nothing more is drained.
func (s *spool) stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	signal(s.room)
}

// some tells whether there are bytes that have not gone to the client.
func (s *spool) some() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in > s.out || s.file.size > s.read
}

// next waits for bytes: of the ring, or of the file, in the scratch buffer. They are to be given to took before the next call.
func (s *spool) next() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if held := s.in - s.out; held > 0 {
			at := s.out % int64(len(s.ring))
			return s.ring[at:min(int64(len(s.ring)), at+held)], nil
		}
		if s.file.size > s.read {
			if s.scratch == nil {
				s.scratch = s.p.buffer()
			}
			n, err := s.file.read(s.scratch[:], s.read)
			return s.scratch[:n], err
		}
		if s.ended {
			return nil, s.err
		}
		s.mu.Unlock()
		<-s.more
		s.mu.Lock()
	}
}

// took says that n bytes have gone to the client, and tells whether there are others.
func (s *spool) took(n int) (more bool, err error) {
	s.mu.Lock()
	if s.in > s.out {
		s.out += int64(n)
	} else if s.read += int64(n); s.read == s.file.size {
		s.read = 0
		err = s.file.clear()
	}
	more = s.in > s.out || s.file.size > s.read || s.ended
	s.mu.Unlock()
	signal(s.room)
	return more, err
}
