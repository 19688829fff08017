package gitssh

import (
	"bytes"
	"io"
	"net/http"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/gateway"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// okLines returns the answer to a successful command.
func okLines(args ...string) []byte {
	return pktline.AppendFlush(appendStatus(nil, http.StatusOK, args...))
}

func appendStatus(b []byte, status int, args ...string) []byte {
	b = pktline.AppendLine(b, "status "+strconv.Itoa(status))
	for _, arg := range args {
		b = pktline.AppendLine(b, arg)
	}
	return b
}

// maxLFSMessage is the maximum length of an error's text in bytes.
const maxLFSMessage = 1 << 10

// statusLines returns the answer to a command that failed.
func statusLines(err error, args ...string) []byte {
	text := fault.Message(err)
	b := pktline.AppendDelim(appendStatus(nil, gateway.StatusOf(fault.KindOf(err)), args...))
	return pktline.AppendFlush(pktline.AppendLine(b, text[:min(len(text), maxLFSMessage)]))
}

// lfsSink sends an object as packets.
type lfsSink struct {
	sink
	size int64 // of the object
}

// Begin implements gateway.Sink.
func (s *lfsSink) Begin() error {
	b := pktline.AppendDelim(appendStatus(nil, http.StatusOK, "size="+strconv.FormatInt(s.size, 10)))
	_, err := s.write(b)
	return err
}

// Write implements gateway.Sink.
func (s *lfsSink) Write(p []byte) (int, error) {
	n, err := s.ReadFrom(bytes.NewReader(p))
	return int(n), err
}

// ReadFrom implements gateway.Sink.
func (s *lfsSink) ReadFrom(src io.Reader) (int64, error) {
	return s.sendPackets(src, nil)
}
