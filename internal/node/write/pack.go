package write

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
)

// Pack is a pack of whole objects (gitformat-pack(5)). It refers to the content of its objects.
type Pack struct {
	format  git.ObjectFormat
	objects []*Object
	entries []entry
	sum     []byte // checksum at its end
}

// entry is what the index has about an object.
type entry struct {
	id     git.ObjectID
	crc    uint32
	offset int64
}

// NewPack makes a pack. It leaves out repeated objects. The error is that of reading the file of an object.
func NewPack(format git.ObjectFormat, objects []*Object) (*Pack, error) {
	seen := make(map[git.ObjectID]bool, len(objects))
	objects = slices.DeleteFunc(slices.Clone(objects), func(o *Object) bool {
		isSeen := seen[o.ID]
		seen[o.ID] = true
		return isSeen
	})
	p := &Pack{format: format, objects: objects, entries: make([]entry, 0, len(objects))}
	hash := format.New()
	header := p.header()
	hash.Write(header)
	offset := int64(len(header))
	for _, o := range objects {
		crc := crc32.NewIEEE()
		both := io.MultiWriter(hash, crc)
		header = entryHeader(o)
		_, _ = both.Write(header)
		if _, err := io.Copy(both, o.Stream()); err != nil {
			return nil, fault.Wrap(fault.Unavailable, "cannot read the content of a large change", err)
		}
		p.entries = append(p.entries, entry{o.ID, crc.Sum32(), offset})
		offset += int64(len(header)) + o.StreamSize()
	}
	p.sum = hash.Sum(nil)
	slices.SortFunc(p.entries, func(a, b entry) int { return a.id.Compare(b.id) })
	return p, nil
}

// header returns the beginning of the pack.
func (p *Pack) header() []byte {
	return binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(len(p.objects)))
}

// entryHeader returns the type and the size before the content of an object.
func entryHeader(o *Object) []byte {
	size := uint64(o.Size)
	b := []byte{byte(o.Type)<<4 | byte(size&15)}
	for size >>= 4; size > 0; size >>= 7 {
		b[len(b)-1] |= 0x80
		b = append(b, byte(size&0x7f))
	}
	return b
}

// Len returns the number of objects.
func (p *Pack) Len() int { return len(p.entries) }

// Name returns the name of the pack's file without its extension, as git index-pack chooses it.
func (p *Pack) Name() string { return "pack-" + git.RawObjectID(p.sum).String() }

// Reader returns a reader of the pack.
func (p *Pack) Reader() io.Reader {
	parts := []io.Reader{bytes.NewReader(p.header())}
	for _, o := range p.objects {
		parts = append(parts, bytes.NewReader(entryHeader(o)), o.Stream())
	}
	return io.MultiReader(append(parts, bytes.NewReader(p.sum))...)
}

// Index returns the index of the pack, version 2.
func (p *Pack) Index() []byte {
	b := []byte("\xfftOc\x00\x00\x00\x02")
	next := 0
	for first := range 256 {
		for next < len(p.entries) && int(p.entries[next].id.Raw()[0]) <= first {
			next++
		}
		b = binary.BigEndian.AppendUint32(b, uint32(next))
	}
	for i := range p.entries {
		b = append(b, p.entries[i].id.Raw()...)
	}
	for _, e := range p.entries {
		b = binary.BigEndian.AppendUint32(b, e.crc)
	}
	var wide []byte
	for _, e := range p.entries {
		offset := uint32(e.offset)
		if e.offset > 0x7fffffff {
			offset = 1<<31 | uint32(len(wide)/8)
			wide = binary.BigEndian.AppendUint64(wide, uint64(e.offset))
		}
		b = binary.BigEndian.AppendUint32(b, offset)
	}
	b = append(append(b, wide...), p.sum...)
	hash := p.format.New()
	hash.Write(b)
	return hash.Sum(b)
}

// Store writes the pack and its index into a directory. If sync is set, it syncs them, but not the directory. Readers
// see them only when they are complete. The error is Full if the disk is full.
func (p *Pack) Store(dir string, sync bool) error {
	var group errgroup.Group
	var pack, index string
	group.Go(func() (err error) {
		index, err = tempFile(dir, "tmp_idx_", bytes.NewReader(p.Index()), sync)
		return err
	})
	group.Go(func() (err error) {
		pack, err = tempFile(dir, "tmp_pack_", p.Reader(), sync)
		return err
	})
	err := group.Wait()
	base := filepath.Join(dir, p.Name())
	if err == nil {
		err = os.Rename(pack, base+".pack")
	}
	if err == nil {
		err = os.Rename(index, base+".idx")
	}
	if err != nil { // after a crash Git removes temporary files
		_, _ = os.Remove(pack), os.Remove(index)
	}
	if disk.IsFull(err) {
		return fault.Wrap(fault.Full, "the server's disk is full", err)
	}
	return fault.Wrap(fault.Unavailable, "the objects cannot be written to the repository", err)
}

// tempFile writes a temporary file.
func tempFile(dir, prefix string, content io.Reader, sync bool) (path string, err error) {
	path = filepath.Join(dir, prefix+rand.Text())
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return path, err
	}
	b := bufio.NewWriter(f)
	if _, err = io.Copy(b, content); err == nil {
		err = b.Flush()
	}
	if err == nil && sync {
		err = f.Sync()
	}
	return path, errors.Join(err, f.Close())
}
