package mirror

import (
	"sync"
	"time"
)

const (
	blockBytes = 256 << 10             // of an object that are written at once
	blockDelay = 30 * time.Millisecond // until followers get bytes that do not fill a block
)

// blockWriter collects the bytes of a file and writes whole blocks, at multiples of blockBytes. The pages of the page
// cache are then large, so each later download of the file takes less CPU time. Bytes are written alone if the rest of
// their block does not arrive within blockDelay. All methods are called by one goroutine.
type blockWriter struct {
	write func([]byte) error
	timer *time.Timer

	mu      sync.Mutex
	block   *[blockBytes]byte // nil: closed
	size    int64             // of the file, with the bytes that are not written
	written int64
	err     error // of write
}

var blocks = sync.Pool{New: func() any { return new([blockBytes]byte) }}

// newBlockWriter returns a writer that appends to a file of so many bytes. The caller closes it.
func newBlockWriter(size int64, write func([]byte) error) *blockWriter {
	w := &blockWriter{write: write, block: blocks.Get().(*[blockBytes]byte), size: size, written: size}
	w.timer = time.AfterFunc(blockDelay, w.expire)
	return w
}

// space returns where the next bytes of the file belong.
func (w *blockWriter) space() []byte { return w.block[w.size%blockBytes:] }

// add adds the first n bytes of space to the file. Everything is written if they are the last. The error is that of a
// write.
func (w *blockWriter) add(n int, isLast bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.written == w.size {
		w.timer.Reset(blockDelay)
	}
	w.size += int64(n)
	if isLast || w.size%blockBytes == 0 {
		w.flush()
	}
	return w.err
}

// expire writes what there is. The next bytes may be read into the rest of the block meanwhile.
func (w *blockWriter) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.block != nil {
		w.flush()
	}
}

// flush writes the bytes that are not written. The caller holds the lock.
func (w *blockWriter) flush() {
	if w.err != nil || w.written == w.size {
		return
	}
	start := w.written % blockBytes
	w.err = w.write(w.block[start : start+w.size-w.written])
	w.written = w.size
}

// close drops bytes that are not written.
func (w *blockWriter) close() {
	w.timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	blocks.Put(w.block)
	w.block = nil
}
