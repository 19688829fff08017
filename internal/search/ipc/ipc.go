// Package ipc is the protocol between the server and its search workers. Server and workers exchange messages of
// packhorse.worker.v1 on sockets and pipes that the server made. Each is preceded by its length
// (google.golang.org/protobuf/encoding/protodelim).
//
// A search worker has a Unix socket as its standard input. The server sends it the file descriptors of other sockets,
// one byte with each. On each of these the server sends a SearchRequest and reads the response. The next request may
// follow. To cancel a search the server closes the socket.
//
// An index worker reads IndexRequests from its standard input and writes IndexResponses to its standard output. If its
// input ends within a job, it exits and leaves the index as it was.
package ipc

import (
	"bufio"
	"fmt"
	"io"
	"math/bits"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
)

// MaxMessage is the maximum size of a message in bytes.
const MaxMessage = 64 << 20

// Write writes a message.
func Write(w io.Writer, m proto.Message) error {
	if n := proto.Size(m); n > MaxMessage {
		return fmt.Errorf("message of %d bytes: more than the limit of %d", n, MaxMessage)
	}
	_, err := protodelim.MarshalTo(w, m)
	return err
}

// Read reads a message into m. The error is io.EOF if the input ends before the message begins.
func Read(r *bufio.Reader, m proto.Message) error {
	return protodelim.UnmarshalOptions{MaxSize: MaxMessage}.UnmarshalFrom(r, m)
}

// Set is a set of repository IDs: the bits of a RepositorySet.
type Set []uint64

// Add adds an ID.
func (s *Set) Add(id uint32) {
	i := int(id / 64)
	if i >= len(*s) {
		*s = append(*s, make([]uint64, i+1-len(*s))...)
	}
	(*s)[i] |= 1 << (id % 64)
}

// Len returns the number of IDs.
func (s Set) Len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// List returns the IDs in ascending order.
func (s Set) List() []uint32 {
	list := make([]uint32, 0, s.Len())
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			list = append(list, uint32(64*i+bits.TrailingZeros64(w)))
		}
	}
	return list
}
