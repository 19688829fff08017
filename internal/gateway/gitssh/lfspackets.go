package gitssh

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/lfs"
	"github.com/packhorse-git/packhorse/internal/schedule/admit"
)

// Limits of a message of git-lfs-transfer.
const (
	maxLFSLine = 8 << 10 // bytes of a line, for a path of the maximum length; less than the input's buffer
	maxLFSArgs = 32
)

// lfsMessage is a request of a client: a command with a word after it, arguments, and after a delimiter packet data of
// the command.
type lfsMessage struct {
	command, word string
	args          map[string]string
	in            *bufio.Reader
	ended         bool // the flush packet was read
	left          int  // bytes of the current packet of data that are still to come
}

// readLFSMessage reads a message up to its data. The error is of kind Invalid, or of the connection.
func readLFSMessage(in *bufio.Reader) (*lfsMessage, error) {
	m := &lfsMessage{in: in, args: map[string]string{}}
	kind, line, err := m.line()
	if err != nil {
		return nil, err
	}
	if kind != pktline.Data {
		return nil, fault.New(fault.Invalid, "a %s packet instead of a command", kind)
	}
	m.command, m.word, _ = strings.Cut(line, " ")
	for count := 0; ; count++ {
		kind, line, err := m.line()
		switch {
		case err != nil:
			return nil, err
		case kind == pktline.Delim || kind == pktline.Flush:
			return m, nil
		case kind != pktline.Data || count == maxLFSArgs:
			return nil, fault.New(fault.Invalid, "%.40s with more than %d arguments, or without an end", m.command,
				maxLFSArgs)
		}
		key, value, _ := strings.Cut(line, "=")
		m.args[key] = value
	}
}

// line reads a packet of text, without the newline at its end.
func (m *lfsMessage) line() (pktline.Type, string, error) {
	kind, size, err := m.head()
	if kind != pktline.Data || err != nil {
		return kind, "", err
	}
	if size > maxLFSLine {
		m.left = size
		return kind, "", fault.New(fault.Invalid, "a line of %d bytes: the maximum is %d", size, maxLFSLine)
	}
	p, err := m.in.Peek(size)
	if err != nil {
		return kind, "", unexpectedEOF(err)
	}
	line := string(bytes.TrimSuffix(p, []byte("\n")))
	_, err = m.in.Discard(size)
	return kind, line, err
}

// head reads the length field of a packet, and returns the size of its payload.
func (m *lfsMessage) head() (kind pktline.Type, size int, err error) {
	p, err := m.in.Peek(4)
	if err != nil {
		return 0, 0, unexpectedEOF(err)
	}
	n, err := pktline.ParseLength(p)
	if err != nil {
		return 0, 0, fault.Wrap(fault.Invalid, "the request is not a pkt-line stream", err)
	}
	if _, err := m.in.Discard(len(p)); err != nil {
		return 0, 0, err
	}
	if n >= len(p) {
		return pktline.Data, n - len(p), nil
	}
	kind = [...]pktline.Type{pktline.Flush, pktline.Delim, pktline.ResponseEnd}[n]
	m.ended = kind == pktline.Flush
	return kind, 0, nil
}

// unexpectedEOF returns the error of a client that has left within a message.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return fault.Wrap(fault.Invalid, "the request was cut off", io.ErrUnexpectedEOF)
	}
	return err
}

// Read reads the data of the message as bytes, up to its flush packet.
func (m *lfsMessage) Read(p []byte) (int, error) {
	for m.left == 0 {
		if m.ended {
			return 0, io.EOF
		}
		kind, size, err := m.head()
		if err != nil {
			return 0, err
		}
		if kind != pktline.Data && kind != pktline.Flush {
			return 0, fault.New(fault.Invalid, "a %s packet within the data of %.40s", kind, m.command)
		}
		if kind == pktline.Data && size == 0 { // they have no limit, and clients send none
			return 0, fault.New(fault.Invalid, "an empty packet within the data of %.40s", m.command)
		}
		m.left = size
	}
	n, err := m.in.Read(p[:min(len(p), m.left)])
	m.left -= n
	return n, unexpectedEOF(err)
}

// object returns the object that the message names. Clients send its size as an argument; the proposal of the protocol
// has it after the ID.
func (m *lfsMessage) object() (o lfs.Object, err error) {
	id, size, _ := strings.Cut(m.word, " ")
	return parseLFSObject(id, cmp.Or(m.args["size"], size))
}

func parseLFSObject(id, size string) (o lfs.Object, err error) {
	if o.OID, err = lfs.ParseOID(id); err != nil {
		return o, err
	}
	if o.Size, err = strconv.ParseInt(size, 10, 64); err != nil || o.Size < 0 {
		return o, fault.New(fault.Invalid, "invalid size of an LFS object: %.40q", size)
	}
	return o, nil
}

// lfsObjectMemory is the memory in bytes that an object of a batch needs until its answer was sent.
const lfsObjectMemory = 256

// objects reads the objects of a batch, one in each line. It counts their memory.
func (m *lfsMessage) objects(memory *admit.Holding) (all []lfs.Object, err error) {
	for !m.ended {
		kind, line, err := m.line()
		switch {
		case err != nil:
			return nil, err
		case kind == pktline.Flush:
			return all, nil
		case kind != pktline.Data:
			return nil, fault.New(fault.Invalid, "a %s packet within a batch", kind)
		case len(all) == lfs.MaxBatch:
			return nil, fault.New(fault.Invalid, "batch of more than %d objects", lfs.MaxBatch)
		}
		if err := memory.Grow(lfsObjectMemory); err != nil {
			return nil, err
		}
		id, rest, _ := strings.Cut(line, " ")
		size, _, _ := strings.Cut(rest, " ")
		object, err := parseLFSObject(id, size)
		if err != nil {
			return nil, err
		}
		all = append(all, object)
	}
	return all, nil
}
