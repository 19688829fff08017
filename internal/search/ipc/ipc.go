// Package ipc is the protocol between the server and its search workers, which are processes of packhorse-search.
// Server and workers exchange messages of packhorse.internal.worker.v1 on sockets and pipes that the server made. Each
// message is preceded by its length (google.golang.org/protobuf/encoding/protodelim). The first message of every worker
// is a Hello.
//
// A search worker has a Unix socket as its standard input, and says Hello on it. When it has loaded the index, it sends
// one byte. The server sends it the file descriptors of other sockets, one byte with each. On each of these the server
// sends a SearchRequest and reads the response. The next request may follow. To cancel a search the server closes the
// socket.
//
// An index worker writes Hello to its standard output. Then it reads IndexRequests from its standard input and writes
// IndexResponses to its standard output. If its input ends during a job, it exits and does not change the index.
package ipc

import (
	"bufio"
	"fmt"
	"io"
	"math/bits"
	"os/exec"
	"path/filepath"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/proto/workerv1"
)

// Program is the name of the program of the workers.
const Program = "packhorse-search"

// FindProgram returns the absolute path of Program: beside the server's program, or else in PATH. The path of the
// server may be empty, which means unknown.
func FindProgram(server string) (string, error) {
	dir := filepath.Dir(server)
	if server == "" {
		dir = "the directory of packhorse"
	} else if program, err := exec.LookPath(filepath.Join(dir, Program)); err == nil {
		return program, nil
	}
	program, err := exec.LookPath(Program)
	if err != nil {
		return "", fmt.Errorf("%s is not in %s and not in PATH: install it beside packhorse, from the same release",
			Program, dir)
	}
	return program, nil
}

// MaxMessage is the maximum size of a message in bytes.
const MaxMessage = 64 << 20

// Write writes a message.
func Write(w io.Writer, m proto.Message) error {
	if n := proto.Size(m); n > MaxMessage {
		return fmt.Errorf("message of %d bytes: more than the limit of %d", n, MaxMessage)
	}
	_, err := protodelim.MarshalOptions{MarshalOptions: proto.MarshalOptions{UseCachedSize: true}}.MarshalTo(w, m)
	return err
}

// Read reads a message into m. The error is io.EOF if the input ends before the message begins.
func Read(r *bufio.Reader, m proto.Message) error {
	return protodelim.UnmarshalOptions{MaxSize: MaxMessage}.UnmarshalFrom(r, m)
}

// Build identifies the build of a program.
type Build struct {
	Version  string
	Revision string // commit of the source; empty: unknown
}

func (b Build) String() string {
	if b.Revision == "" {
		return b.Version
	}
	return b.Version + " (" + b.Revision + ")"
}

// matches reports whether two programs are of the same build, as far as their revisions are known.
func (b Build) matches(other Build) bool {
	return b.Version == other.Version &&
		(b.Revision == other.Revision || b.Revision == "" || other.Revision == "")
}

// MismatchError reports a worker whose build differs from that of the server.
type MismatchError struct{ Worker, Server Build }

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s %s does not match packhorse %s: install both programs from the same release, and restart the "+
		"server", Program, e.Worker, e.Server)
}

// WriteHello writes the first message of a worker.
func WriteHello(w io.Writer, worker Build) error {
	return Write(w, &workerv1.Hello{Version: worker.Version, Revision: worker.Revision})
}

// ReadHello reads the first message of a worker. The error is a *MismatchError if the worker's build is not the
// server's.
func ReadHello(r *bufio.Reader, server Build) error {
	var hello workerv1.Hello
	if err := Read(r, &hello); err != nil {
		return err
	}
	if worker := (Build{hello.Version, hello.Revision}); !worker.matches(server) {
		return &MismatchError{worker, server}
	}
	return nil
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

// Has reports whether the set has an ID.
func (s Set) Has(id uint32) bool { return int(id/64) < len(s) && s[id/64]&(1<<(id%64)) != 0 }

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
