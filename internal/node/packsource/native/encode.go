package native

import (
	"bytes"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"runtime/debug"

	"github.com/klauspost/compress/zlib"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/disk"
	"github.com/packhorse-git/packhorse/internal/git/pack"
)

const (
	// maxEncode is the maximum size of an object that is encoded in memory. Larger ones are streamed.
	maxEncode = 8 << 20

	// maxWhole is the maximum size of an object that is stored as a delta, and is not streamed. Git makes no deltas of
	// larger objects by default (core.bigFileThreshold).
	maxWhole = 512 << 20
)

// encoderMemory is the maximum memory of each goroutine for objects that it has read, which are bases of others.
const encoderMemory = 16 << 20

// encoder reads objects and compresses them. Its goroutines end with the objects that were begun.
type encoder struct {
	store  *pack.Store
	view   *view
	level  int
	whole  int64       // maximum size of a large object that is stored as a delta
	single bool        // objects are encoded when they are needed
	ahead  int         // maximum number of objects that are begun and not written
	coders chan *coder // of all goroutines; nil: it is not made yet
}

// coder is what one goroutine needs.
type coder struct {
	objects *pack.Reader
	zlib    *zlib.Writer
	buf     bytes.Buffer
	delta   []byte
	base    []byte
	hash    hash.Hash
}

// newEncoder returns an encoder with a zlib level, a maximum number of goroutines, and a maximum size of objects that
// are in memory as a whole.
func newEncoder(store *pack.Store, v *view, level, workers int, whole int64) *encoder {
	e := &encoder{store: store, view: v, level: level, whole: max(min(whole, maxWhole), maxEncode), single: workers <= 1,
		ahead: 2 * workers, coders: make(chan *coder, max(workers, 1))}
	for range cap(e.coders) {
		e.coders <- nil
	}
	return e
}

// take waits for a coder. The caller puts it back into e.coders.
func (e *encoder) take() *coder {
	c := <-e.coders
	if c != nil {
		return c
	}
	c = &coder{hash: e.view.format.New()}
	packs := make([]*pack.Raw, len(e.view.sources))
	for i, source := range e.view.sources {
		packs[i] = source.Raw
	}
	c.objects = pack.NewReader(e.store, packs, encoderMemory)
	c.objects.MaxObject = maxEncode
	c.zlib, _ = zlib.NewWriterLevel(&c.buf, e.level) // the level is a constant
	return c
}

// close waits for the goroutines, after which nothing can be encoded.
func (e *encoder) close() {
	for range cap(e.coders) {
		if c := <-e.coders; c != nil {
			c.objects.Close()
		}
	}
}

// read returns an object, which is valid until the next call.
func (e *encoder) read(c *coder, id git.ObjectID) (git.ObjectType, []byte, error) {
	at, ok := e.view.find(id.Raw())
	if !ok {
		return e.store.Read(id, maxEncode)
	}
	o, err := c.objects.Read(e.view.sources[at.source].Raw, at.pos)
	if err == nil {
		c.hash.Reset()
		c.hash.Write(fmt.Appendf(nil, "%s %d\x00", o.Type, len(o.Data)))
		c.hash.Write(o.Data)
		if bytes.Equal(c.hash.Sum(nil), id.Raw()) {
			return o.Type, o.Data, nil
		}
	}
	return e.store.Read(id, maxEncode) // it tries other copies
}

// encoding is an object that is being encoded.
type encoding struct {
	id    git.ObjectID
	base  git.ObjectID // similar object that is written before; zero: unknown
	depth int          // number of deltas in its chain if it becomes a delta of the base
	most  int64        // maximum length of the delta. Otherwise the entry is copied, and deflate is nil. 0: no limit

	done     chan struct{} // nil: it is not begun
	kind     byte          // of the entry: an object type, or pack.OfsDelta
	size     int           // of the inflated stream
	deflate  []byte        // zlib stream
	large    bool          // the caller streams the object
	err      error
	panicked any // of the goroutine
}

// begin starts to encode an object. It waits for one of the goroutines.
func (e *encoder) begin(x *encoding) {
	if e.single {
		return
	}
	x.done = make(chan struct{})
	c := e.take()
	go func() {
		defer func() {
			if v := recover(); v != nil {
				x.panicked = fmt.Sprintf("%v\n%s", v, debug.Stack())
			}
			e.coders <- c
			close(x.done)
		}()
		x.err = disk.GuardMapped(func() error { return e.encode(c, x) })
	}()
}

// wait returns when the object is encoded. A panic of its goroutine continues in that of the caller.
func (e *encoder) wait(x *encoding) error {
	if x.done != nil {
		<-x.done
		if x.panicked != nil {
			panic(x.panicked)
		}
		return x.err
	}
	if x.deflate != nil || x.large { // it is encoded
		return nil
	}
	c := e.take()
	defer func() { e.coders <- c }()
	return e.encode(c, x)
}

func (e *encoder) encode(c *coder, x *encoding) error {
	c.base = c.base[:0]
	var baseType git.ObjectType
	if !x.base.IsZero() {
		found, base, err := e.read(c, x.base)
		if err == nil { // otherwise the base fails itself
			baseType, c.base = found, append(c.base, base...)
		}
	}
	typ, data, err := e.read(c, x.id)
	if fault.Is(err, fault.Invalid) {
		x.large = true
		return nil
	}
	if err != nil {
		return err
	}
	x.kind = byte(typ)
	if len(c.base) > 0 && baseType == typ { // a damaged tree can name a file and a tree as versions of each other
		var ok bool
		if c.delta, ok = pack.AppendDelta(c.delta[:0], c.base, data, len(data)/2); ok {
			x.kind, data = pack.OfsDelta, c.delta
		}
	}
	if x.most > 0 && x.kind != pack.OfsDelta {
		return nil
	}
	x.size = len(data)
	c.buf.Reset()
	c.zlib.Reset(&c.buf)
	c.zlib.Write(data) // into memory
	c.zlib.Close()
	if x.most == 0 || int64(c.buf.Len()) <= x.most {
		x.deflate = bytes.Clone(c.buf.Bytes())
	}
	return nil
}

// writeEncoded writes an object that was encoded again.
func (w *writer) writeEncoded(x *encoding) error {
	if err := w.encoder.wait(x); err != nil {
		return unreadable(x.id, err)
	}
	at := w.out.offset
	if x.large {
		if err := w.stream(x.id); err != nil {
			return err
		}
	} else {
		header := appendEntry(w.header[:0], x.kind, int64(x.size))
		if x.kind == pack.OfsDelta {
			w.newDeltas++
			header = w.deltaHeader(x, at)
		}
		if err := w.out.write(header); err != nil {
			return err
		}
		if err := w.out.write(x.deflate); err != nil {
			return err
		}
		depth := 0
		if x.kind == pack.OfsDelta {
			depth = x.depth
		}
		w.index.add(x.id.Raw(), crc32.Update(crc32.ChecksumIEEE(header), crc32.IEEETable, x.deflate), at, depth)
		x.deflate = nil // a batch can have many large objects
	}
	w.made.Encoded.Objects++
	w.made.Encoded.Bytes += w.out.offset - at
	return w.tick(0)
}

// deltaHeader returns the header of a delta that is written at an offset.
func (w *writer) deltaHeader(x *encoding, at int64) []byte {
	if base, written := w.offsetOf(x.base.Raw()); written && w.spec.Offset {
		return appendDistance(appendEntry(w.header[:0], pack.OfsDelta, int64(x.size)), at-base)
	}
	return append(appendEntry(w.header[:0], pack.RefDelta, int64(x.size)), x.base.Raw()...)
}

// unreadable is the error for an object that cannot be read.
func unreadable(id git.ObjectID, err error) error {
	if !fault.Is(err, fault.Corrupt) && !fault.Is(err, fault.NotFound) {
		return err
	}
	return fault.Wrap(fault.Corrupt, "the pack could not be made: object "+id.String()+
		" is missing or damaged in the repository on the server; tell its administrator", err)
}

// stream encodes a large object while it is read.
func (w *writer) stream(id git.ObjectID) error {
	at, sum := w.out.offset, crc32.NewIEEE()
	out := io.MultiWriter(sum, writerFunc(w.out.write))
	typ, size, content, err := w.open(id)
	if err != nil {
		return unreadable(id, err)
	}
	defer content.Close()
	if _, err := out.Write(appendEntry(nil, byte(typ), size)); err != nil {
		return err
	}
	c := w.encoder.take()
	defer func() { w.encoder.coders <- c }()
	c.zlib.Reset(out)
	b := make([]byte, blockSize)
	for {
		n, err := content.Read(b)
		if _, err := c.zlib.Write(b[:n]); err != nil {
			return err
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return unreadable(id, err)
		}
		if err := w.tick(0); err != nil {
			return err
		}
	}
	if err := c.zlib.Close(); err != nil {
		return err
	}
	w.index.add(id.Raw(), sum.Sum32(), at, 0)
	return nil
}

// open opens a large object for reading.
func (w *writer) open(id git.ObjectID) (git.ObjectType, int64, io.ReadCloser, error) {
	s, err := w.encoder.store.Stream(id)
	if err == nil {
		return s.Type, s.Size, s, nil
	}
	if !errors.Is(err, pack.ErrDelta) {
		return 0, 0, nil, err
	}
	typ, data, err := w.encoder.store.Read(id, w.encoder.whole)
	return typ, int64(len(data)), io.NopCloser(bytes.NewReader(data)), err
}

type writerFunc func(p []byte) error

func (f writerFunc) Write(p []byte) (int, error) { return len(p), f(p) }
