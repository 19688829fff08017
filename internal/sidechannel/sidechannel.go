// Package sidechannel is the road of bulk bytes between a gateway and a node: raw connections that control calls name,
// and over which the kernel moves bytes that meet no codec. A Server is the node's end, a Pool the gateway's.
//
// # Opening
//
// The gateway connects to the node's port (TCP, a Unix socket, or TLS with the protocol "http/1.1" chosen by ALPN) and
// sends
//
//	GET /packhorse/channel HTTP/1.1
//	Host: <name>
//	Connection: Upgrade
//	Upgrade: packhorse-channel/1
//	Packhorse-Channel-Files: 2                (by a Unix socket, if the gateway takes files)
//	<the credentials of a control call>
//
// The node answers with
//
//	HTTP/1.1 101 Switching Protocols
//	Connection: Upgrade
//	Upgrade: packhorse-channel/1
//	Packhorse-Channel: <name: 128 random bits, 32 lower-case hexadecimal digits>
//	Packhorse-Channel-Idle: <milliseconds after which the node closes the channel if it is not used>
//	Packhorse-Channel-Stall: <milliseconds within which the node wants to hear of a file>
//	Packhorse-Channel-Files: 2                (if the gateway has sent it, and the node will hand it files)
//
// With this last line, a descriptor of /dev/null comes with the answer's first byte (SCM_RIGHTS). If none arrives,
// something stands between the two, and the gateway closes the connection and asks again without files.
//
// and from there on the connection is a channel. Any other status is a refusal with a sentence of text: 503 with
// Retry-After if the node has too many channels or ends, 426 if the request asks for something else, and what the node
// says to wrong credentials. The name is a secret between the two, and is bound to the caller whose credentials came
// with the request.
//
// # Transfers
//
// A channel carries one transfer after the other, numbered from 1. A control call names the channel and the number; the
// node takes part once it has claimed them for the call's caller, and sends nothing before. A number is good for one
// claim.
//
// A transfer has two directions, which know nothing of each other but its number. Each consists of headers of 24 bytes,
// integers big-endian, fields that a type does not use zero:
//
//	offset  size  field
//	     0     1  type: 'S' START, 'D' DATA, 'F' FILE, 'T' TAKEN, 'E' END
//	     1     1  status (END, TAKEN)
//	     2     2  bytes of message that follow the header (END, TAKEN; at most 1024)
//	     4     4  milliseconds to wait before the next try (END, TAKEN; 0: no advice)
//	     8     8  number of the transfer
//	    16     8  length in bytes (see below; at most 2^44)
//
//	START  begins a direction. Its length is that of all the bytes to come, or 2^64-1: unknown.
//	       Of a known length, the raw bytes follow with nothing between them, and then END.
//	DATA   only after a START with an unknown length: as many raw bytes follow as its length says, at least 1. Any number of
//	       DATA may follow each other.
//	END    ends the direction. Its length is how many bytes the direction had. Status 0 says that they are all there is; any other is
//	       the kind of failure (1 internal, 2 invalid, 3 not found, 4 denied, 5 exhausted, 6 unavailable, 7 corrupt, 8 cancelled,
//	       9 deadline, 10 exists), with a message for whoever made the request.
//
// On a channel with files the node's direction has no raw bytes after START: of a known length, too, they come in DATA
// and FILE.
//
//	FILE   stands for as many bytes as its length says, at least 1, of a regular file. The file's descriptor comes with the header's first
//	       byte (SCM_RIGHTS), and 8 bytes follow the header: where in the file the bytes begin.
//
//	TAKEN  is the gateway's answer to a FILE: how many of its bytes have gone. The gateway sends the bytes from the file, a TAKEN at least
//	       each second meanwhile, and one with the FILE's length when the client's connection has taken all; or one with a status, if the file cannot be read. The
//	       node sends nothing before the last one. The gateway's direction carries nothing else.
//
// A direction that carries nothing is an END alone. The side that carries nothing, or nothing more, sends it only when
// it has read the other direction to its end: so the END of a receiver acknowledges what it received.
//
// # Ends
//
// A channel can be used again only when each side has sent and received an END with status 0. Whatever else happens
// closes it: a status other than 0, a direction given up, a connection that ends, a header that breaks these rules,
// another transfer's number, bytes that nobody asked for, a limit. Within a known length there is no way to tell of a
// failure but to close; the control call carries its reason. So a direction without its END is not whole, and no byte
// of one transfer can reach another.
//
// Limits: a peer that takes nothing, or sends nothing of what a header has announced, is cut off after a time (Stall),
// as is one that does not acknowledge. Waiting for a header has no limit while a transfer runs, until the control call
// beside it has said that all was sent (Due). A channel that nobody uses is closed by either side after a time (Idle),
// by the gateway after half of the node's at the latest: so a channel is not announced while the node gives it up, and
// what a gateway leaves behind that was stopped or cut off is gone soon. The node has at most so many channels (Max),
// and if there are several callers, each at most three quarters of them.
package sidechannel

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/packhorse-git/packhorse/internal/bulk"
)

// Path is where a node's port opens channels, by GET.
const Path = "/packhorse/channel"

const (
	protocol    = "packhorse-channel/1"
	nameHeader  = "Packhorse-Channel"
	idleHeader  = "Packhorse-Channel-Idle"
	stallHeader = "Packhorse-Channel-Stall"
	fileHeader  = "Packhorse-Channel-Files"
	fileVersion = "2" // another one is that of somebody with whom no file is handed over
	nameLength  = 32
)

// Defaults of the limits.
const (
	defaultMax      = 4096
	defaultMaxIdle  = 1024
	defaultNodeIdle = 30 * time.Second
	defaultPoolIdle = 10 * time.Second
	defaultStall    = time.Minute
)

// limits are what both ends share.
type limits struct {
	pump    *bulk.Pump
	idle    time.Duration
	stall   time.Duration
	metrics *Metrics
	log     *slog.Logger
	buffers *buffers
}

// socket is a channel's connection.
type socket struct {
	net.Conn            // what is written to and read from
	kernel   *bulk.Conn // the same, if the kernel can move bytes; nil: through TLS
	below    net.Conn   // what is closed: no TLS alert that could block
}

// newSocket prepares a connection: limits set, deadlines cleared.
func newSocket(c net.Conn, l *limits) (socket, error) {
	switch c := c.(type) {
	case *bulk.Conn:
		return socket{c, c, c}, c.SetStall(l.stall)
	case bulk.Socket:
		b, err := bulk.NewConn(c, l.pump, l.stall)
		if err != nil {
			return socket{}, err
		}
		return socket{b, b, b}, b.SetDeadline(time.Time{})
	}
	s := socket{Conn: c, below: c}
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		s.below = t.NetConn()
	}
	if b, ok := s.below.(*bulk.Conn); ok {
		return s, b.SetStall(l.stall)
	}
	return s, c.SetDeadline(time.Time{})
}

// userStep is how much is written at once where the time limit is set for each write.
const userStep = 64 << 10

// write writes all of p within the time limit, which is renewed with each step.
func (s *socket) write(p []byte, stall time.Duration) error {
	if s.kernel != nil {
		_, err := s.kernel.Write(p) // keeps its own
		return err
	}
	for len(p) > 0 {
		if err := s.SetWriteDeadline(time.Now().Add(stall)); err != nil {
			return err
		}
		n, err := s.Conn.Write(p[:min(len(p), userStep)])
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return s.SetWriteDeadline(time.Time{})
}

// unexpected is an EOF where more has to come.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
