package pack

import "sync"

// generation is one half of a Reader's kept objects. Their memory is allocated in slabs, and used again as a whole.
type generation struct {
	objects map[entryKey]*Object
	bytes   int64 // of all objects

	slabs  []*[slabSize]byte
	slab   int // the slab that is in use
	used   int // of it
	blocks [][]Object
	block  int
	taken  int
}

// entryKey is the place of an entry.
type entryKey struct {
	pack   *Raw
	offset int64
}

const (
	slabSize  = 512 << 10
	blockSize = 256
)

// slabs has the memory of closed Readers.
var slabs = sync.Pool{New: func() any { return new([slabSize]byte) }}

// close gives the memory to other Readers.
func (g *generation) close() {
	for _, slab := range g.slabs {
		slabs.Put(slab)
	}
	*g = generation{}
}

func newGeneration() generation { return generation{objects: map[entryKey]*Object{}} }

// reset forgets all objects. Their memory is used for the next ones.
func (g *generation) reset() {
	clear(g.objects)
	g.bytes, g.slab, g.used, g.block, g.taken = 0, 0, 0, 0, 0
}

// object adds an object with size bytes of unknown content.
func (g *generation) object(key entryKey, size int64) *Object {
	if g.block == len(g.blocks) {
		g.blocks = append(g.blocks, make([]Object, blockSize))
	}
	o := &g.blocks[g.block][g.taken]
	if g.taken++; g.taken == blockSize {
		g.block, g.taken = g.block+1, 0
	}
	*o = Object{Data: g.memory(size)}
	g.bytes += size
	g.objects[key] = o
	return o
}

func (g *generation) memory(size int64) []byte {
	if size > slabSize/4 {
		return make([]byte, size)
	}
	n := int(size)
	if g.slab < len(g.slabs) && g.used+n > slabSize {
		g.slab, g.used = g.slab+1, 0
	}
	if g.slab == len(g.slabs) {
		g.slabs = append(g.slabs, slabs.Get().(*[slabSize]byte))
	}
	b := g.slabs[g.slab][g.used : g.used+n : g.used+n]
	g.used += n
	return b
}

// kept returns an object that was read before, or nil.
func (r *Reader) kept(p *Raw, offset int64) *Object {
	key := entryKey{p, offset}
	if o := r.young.objects[key]; o != nil {
		o.Base = nil // it may be gone
		return o
	}
	old := r.old.objects[key]
	if old == nil {
		return nil
	}
	o := r.young.object(key, int64(len(old.Data)))
	copy(o.Data, old.Data)
	o.Type, o.Mark = old.Type, old.Mark
	return o
}

// keep makes an object of size bytes that the caller fills. If the young generation is full, it becomes the old one.
// The objects that were kept or made last are then still valid.
func (r *Reader) keep(p *Raw, offset, size int64) *Object {
	if r.young.bytes+size > r.limit/2 && r.young.bytes > 0 {
		r.young, r.old = r.old, r.young
		r.Turns++
		r.young.reset()
	}
	return r.young.object(entryKey{p, offset}, size)
}

// forget forgets an object that could not be filled, and returns err.
func (r *Reader) forget(at *entry, err error) error {
	delete(r.young.objects, entryKey{at.pack, at.offset})
	return err
}
