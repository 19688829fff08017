// Package ipc is the protocol between the server and its search worker processes: frames, on sockets and pipes that the server made.
//
// A frame is one byte, its kind; four, the length of what follows, big endian; and so many bytes. A process that searches has a socket as its standard
// input, over which it is sent other sockets, one byte with each. On each of these the server asks: a Request, then the set of repositories, if
// that is limited. The answer is any number of batches and an End; the next request may follow. Who has no more interest closes the socket.
//
// A process that indexes is sent a Job, documents and paths, and Finish, on its standard input, and answers with one Report. The next job may follow, unless the
// report tells of a failure: then the process ends. If its input ends within a job, it ends and leaves the index as it was.
package ipc

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/bits"
)

// Kind is what a frame is.
type Kind byte

// Kinds of frames. Where none is named, the payload is JSON of the type in the comment.
const (
	KindRequest      Kind = 'q' // Request, in bytes
	KindRepositories Kind = 'r' // a Set, in bytes
	KindBatch        Kind = 'b' // two numbers of 4 bytes, results and matches, and the elements of a JSON array
	KindEnd          Kind = 'e' // End, in bytes
	KindJob          Kind = 'j' // Job
	KindTaken        Kind = 't' // the job is taken; empty
	KindDocument     Kind = 'd' // see Document
	KindGone         Kind = 'x' // a path that has changed or is gone, in bytes
	KindFinish       Kind = 'z' // empty
	KindReport       Kind = 'a' // Report
	KindShard        Kind = 's' // Shard
)

const (
	headerSize  = 5
	batchHeader = 8
	// MaxFrame bounds a frame's payload.
	MaxFrame = 64 << 20
)

// Request asks for a search.
type Request struct {
	Query   string
	Format  int  // wire.Format
	Limit   int  // results
	Timeout int  // ms
	Limited bool // a set of repositories follows
	Loaded  bool // what is asked is only which of these can be searched, and how many shards of each
}

// End ends an answer.
type End struct {
	Error        string
	Kind         uint8 // of the error: fault.Kind
	Limited      bool  // there are, or may be, more
	TimedOut     bool
	Crashed      bool // some shards could not be searched
	Results      int
	Matches      int
	Searched     int   // repositories
	Took         int64 // us; time of the search in the process: of all, but for reading the request and sending results
	Repositories []Found
}

// Found is a repository with results, or one that was asked for.
type Found struct {
	ID     uint32
	Shards int // that are loaded, where that was asked
	Commit string
	Branch string
}

// Branch is an indexed branch.
type Branch struct {
	Name   string `json:"name"` // short
	Commit string `json:"commit"`
}

// Job says what is to be indexed, or, with Inspect, asks for the shards there are.
type Job struct {
	Dir        string   `json:"dir"`
	Inspect    bool     `json:"inspect,omitempty"`
	ID         uint32   `json:"id"`
	Repository string   `json:"repository"`
	Branches   []Branch `json:"branches"`
	Delta      bool     `json:"delta,omitempty"` // on top of the shards there are
	First      bool     `json:"first,omitempty"` // there are none
	MaxFile    int      `json:"max_file"`        // bytes; greater files are found by name only
	ShardSize  int      `json:"shard_size"`      // bytes of content
	Ctags      string   `json:"ctags,omitempty"` // program
}

// Report is what became of a job.
type Report struct {
	Error     string `json:"error,omitempty"`
	Rebuild   bool   `json:"rebuild,omitempty"` // the shards there are cannot be built upon
	Full      bool   `json:"full,omitempty"`    // no room on the disk, or it cannot be written to
	Documents int    `json:"documents"`
	NamesOnly int    `json:"names_only"` // of them, found by their names only: too large, binary, or in an encoding that is not text to zoekt
	Bytes     int64  `json:"bytes"`
	Size      int64  `json:"size"` // of the shards, in bytes

	Shards []string `json:"shards"` // that the repository has now, by their files' names
}

// Failed tells whether the job was not done.
func (r *Report) Failed() bool { return r.Error != "" || r.Rebuild }

// Shard is a file of the index.
type Shard struct {
	File       string   `json:"file"` // name
	ID         uint32   `json:"id"`
	Repository string   `json:"repository"`
	Branches   []Branch `json:"branches"`
	Build      string   `json:"build"` // the job that made it
	Symbols    bool     `json:"symbols"`
	Bytes      int64    `json:"bytes"`
	Error      string   `json:"error,omitempty"` // it cannot be read, or only by another version
}

// Document is a file to index. Its frame: branches, 8 bytes, a bit for each of the job's; the size of the file, 8 bytes; the length of the path, 4 bytes; the
// path; the content, which is missing if the file is too large.
type Document struct {
	Branches uint64
	Size     int64
	Path     []byte
	Content  []byte
}

const documentHeader = 20

// Writer writes frames. One goroutine uses it.
type Writer struct{ *bufio.Writer }

// NewWriter makes a writer. What is written is sent when the buffer is full, and by Flush.
func NewWriter(w io.Writer, size int) Writer { return Writer{bufio.NewWriterSize(w, size)} }

func (w Writer) header(kind Kind, n int) {
	var h [headerSize]byte
	h[0] = byte(kind)
	binary.BigEndian.PutUint32(h[1:], uint32(n))
	w.Write(h[:])
}

// Frame writes a frame with these bytes.
func (w Writer) Frame(kind Kind, payload []byte) error {
	if len(payload) > MaxFrame {
		return fmt.Errorf("frame of %d bytes is too large", len(payload))
	}
	w.header(kind, len(payload))
	_, err := w.Write(payload)
	return err
}

// JSON writes a frame with a value.
func (w Writer) JSON(kind Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Frame(kind, b)
}

// Document writes a document.
func (w Writer) Document(d Document) error {
	n := documentHeader + len(d.Path) + len(d.Content)
	if n > MaxFrame {
		return fmt.Errorf("document of %d bytes is too large", n)
	}
	w.header(KindDocument, n)
	var h [documentHeader]byte
	binary.BigEndian.PutUint64(h[:], d.Branches)
	binary.BigEndian.PutUint64(h[8:], uint64(d.Size))
	binary.BigEndian.PutUint32(h[16:], uint32(len(d.Path)))
	w.Write(h[:])
	w.Write(d.Path)
	_, err := w.Write(d.Content)
	return err
}

// Batch writes results.
func (w Writer) Batch(results, matches int, elements []byte) error {
	w.header(KindBatch, batchHeader+len(elements))
	var h [batchHeader]byte
	binary.BigEndian.PutUint32(h[:], uint32(results))
	binary.BigEndian.PutUint32(h[4:], uint32(matches))
	w.Write(h[:])
	_, err := w.Write(elements)
	return err
}

// ParseDocument reads a document's frame. It refers to the payload.
func ParseDocument(b []byte) (Document, error) {
	if len(b) < documentHeader {
		return Document{}, fmt.Errorf("document of %d bytes is too short", len(b))
	}
	d := Document{Branches: binary.BigEndian.Uint64(b), Size: int64(binary.BigEndian.Uint64(b[8:]))}
	path := binary.BigEndian.Uint32(b[16:])
	b = b[documentHeader:]
	if uint64(path) > uint64(len(b)) {
		return Document{}, fmt.Errorf("path of %d bytes is longer than its document", path)
	}
	d.Path, d.Content = b[:path:path], b[path:]
	return d, nil
}

// ParseBatch reads a batch's frame. The elements refer to the payload.
func ParseBatch(b []byte) (results, matches int, elements []byte, err error) {
	if len(b) < batchHeader {
		return 0, 0, nil, fmt.Errorf("batch of %d bytes is too short", len(b))
	}
	return int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint32(b[4:])), b[batchHeader:], nil
}

// Reader reads frames. One goroutine uses it.
type Reader struct{ *bufio.Reader }

// NewReader makes a reader.
func NewReader(r io.Reader, size int) Reader { return Reader{bufio.NewReaderSize(r, size)} }

// Frame reads a frame into buf, which grows as needed. The error is io.EOF only between frames.
func (r Reader) Frame(buf []byte) (Kind, []byte, error) {
	var h [headerSize]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, buf[:0], err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > MaxFrame {
		return 0, buf[:0], fmt.Errorf("frame of %d bytes is too large", n)
	}
	if int(n) > cap(buf) {
		buf = make([]byte, n, 1<<bits.Len32(n))
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		return 0, buf[:0], fmt.Errorf("reading a frame of %d bytes: %w", n, noEOF(err))
	}
	return Kind(h[0]), buf, nil
}

func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Set is a set of repositories by their numbers: a bit for each.
type Set []uint64

// Add puts a number in.
func (s *Set) Add(id uint32) {
	i := int(id / 64)
	if i >= len(*s) {
		*s = append(*s, make([]uint64, i+1-len(*s))...)
	}
	(*s)[i] |= 1 << (id % 64)
}

// Has tells whether a number is in it.
func (s Set) Has(id uint32) bool { return int(id/64) < len(s) && s[id/64]&(1<<(id%64)) != 0 }

// Len counts what is in it.
func (s Set) Len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// List gives what is in it, in order.
func (s Set) List() []uint32 {
	list := make([]uint32, 0, s.Len())
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			list = append(list, uint32(64*i+bits.TrailingZeros64(w)))
		}
	}
	return list
}

// Bytes writes the set.
func (s Set) Bytes() []byte {
	b := make([]byte, 0, 8*len(s))
	for _, w := range s {
		b = binary.BigEndian.AppendUint64(b, w)
	}
	return b
}

// ParseSet reads a set.
func ParseSet(b []byte) (Set, error) {
	if len(b)%8 != 0 {
		return nil, fmt.Errorf("set of %d bytes", len(b))
	}
	s := make(Set, len(b)/8)
	for i := range s {
		s[i] = binary.BigEndian.Uint64(b[8*i:])
	}
	return s, nil
}
