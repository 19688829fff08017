package pack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// maxOpenPacks is the maximum number of pack descriptors that a store keeps open without readers.
const maxOpenPacks = 64

// errGone means that a pack's file does not exist any more, because `git gc` or `git repack` has replaced it.
var errGone = errors.New("the pack is gone")

// packFile is a pack that a directory scan found. Its descriptor is opened by the first reader.
type packFile struct {
	path  string // without ".pack"
	hash  int    // bytes in an object ID
	mtime int64
	id    disk.ID    // of the .idx
	index *packIndex // nil if a multi-pack-index covers it, or if it is damaged

	covered atomic.Pointer[packIndex] // its own index, once it was needed although a multi-pack-index covers it

	open *openPack // guarded by descriptors.mu
	gone bool      // guarded by descriptors.mu: not part of the store any more, and not kept open
}

func (p *packFile) name() string { return filepath.Base(p.path) }

// openPack is an open descriptor with its number of readers. It is closed only when it has none.
type openPack struct {
	pack *packFile
	file *os.File
	size int64 // where the entries end and the trailer begins

	readers int // guarded by descriptors.mu
}

// descriptors keeps a limited number of packs open, and closes the least recently used one first. It is safe for
// concurrent use. Files are opened and closed without the lock.
type descriptors struct {
	mu     sync.Mutex
	recent *simplelru.LRU[*openPack, struct{}] // those that stay open without readers; nil: none yet
	closed bool
}

// acquire opens p if it is not open yet. The caller releases the result.
func (d *descriptors) acquire(p *packFile) (*openPack, error) {
	d.mu.Lock()
	if o := p.open; o != nil {
		o.readers++
		d.recent.Get(o)
		d.mu.Unlock()
		return o, nil
	}
	d.mu.Unlock()
	o, err := p.openFile()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	if other := p.open; other != nil { // another goroutine was faster
		other.readers++
		d.mu.Unlock()
		o.file.Close()
		return other, nil
	}
	o.readers = 1
	var old *openPack
	if !p.gone && !d.closed {
		if d.recent == nil {
			d.recent, _ = simplelru.NewLRU[*openPack, struct{}](maxOpenPacks, nil) // fails only for a size below 1
		}
		if d.recent.Len() == maxOpenPacks {
			oldest, _, _ := d.recent.GetOldest()
			old = d.forget(oldest)
		}
		p.open = o
		d.recent.Add(o, struct{}{})
	}
	d.mu.Unlock()
	old.closeFile()
	return o, nil
}

// forget removes o from the kept descriptors. It returns o if it has no readers: the caller has to close it. The caller
// holds d.mu.
func (d *descriptors) forget(o *openPack) *openPack {
	d.recent.Remove(o)
	o.pack.open = nil
	if o.readers > 0 {
		return nil
	}
	return o
}

func (d *descriptors) release(o *openPack) {
	d.mu.Lock()
	o.readers--
	last := o.readers == 0 && o.pack.open != o
	d.mu.Unlock()
	if last {
		o.closeFile()
	}
}

// drop marks p as not part of the store any more.
func (d *descriptors) drop(p *packFile) {
	d.mu.Lock()
	p.gone = true
	for _, x := range []*packIndex{p.index, p.covered.Load()} {
		orders.drop(x)
	}
	var idle *openPack
	if p.open != nil {
		idle = d.forget(p.open)
	}
	d.mu.Unlock()
	idle.closeFile()
}

// close closes the descriptors without readers, and keeps none open from now on.
func (d *descriptors) close() {
	d.mu.Lock()
	d.closed = true
	var idle []*openPack
	for d.recent != nil && d.recent.Len() > 0 {
		oldest, _, _ := d.recent.GetOldest()
		if o := d.forget(oldest); o != nil {
			idle = append(idle, o)
		}
	}
	d.mu.Unlock()
	for _, o := range idle {
		o.closeFile()
	}
}

func (o *openPack) closeFile() {
	if o != nil {
		o.file.Close()
	}
}

// openFile opens the pack and checks its header, and that it is the one its index was made for.
func (p *packFile) openFile() (*openPack, error) {
	f, err := disk.Open(p.path + ".pack")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	o := &openPack{pack: p, file: f}
	if err := o.check(); err != nil {
		f.Close()
		return nil, err
	}
	return o, nil
}

// check reads the pack's header and trailer (gitformat-pack, "pack-*.pack files have the following format").
func (o *openPack) check() error {
	info, err := o.file.Stat()
	if err != nil {
		return err
	}
	o.size = info.Size() - int64(o.pack.hash)
	if o.size < packHeader {
		return errors.New("not a pack: too short")
	}
	var header [packHeader]byte
	if _, err := o.file.ReadAt(header[:], 0); err != nil {
		return fmt.Errorf("reading the pack's header: %w", err)
	}
	if v := binary.BigEndian.Uint32(header[4:]); string(header[:4]) != "PACK" || v != 2 && v != 3 {
		return errors.New("not a pack of version 2 or 3")
	}
	x := o.pack.index
	if x == nil {
		return nil
	}
	if n := binary.BigEndian.Uint32(header[8:]); int(n) != x.layout.count {
		return fmt.Errorf("the pack holds %d objects, its index %d", n, x.layout.count)
	}
	sum := make([]byte, o.pack.hash)
	if _, err := o.file.ReadAt(sum, o.size); err != nil {
		return fmt.Errorf("reading the pack's checksum: %w", err)
	}
	if !bytes.Equal(sum, x.sum) {
		return errors.New("the pack is not the one its index was made for")
	}
	return nil
}
