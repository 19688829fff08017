// Package sidechannel carries bulk data between a gateway and a node: raw connections that control calls name, and over
// which the kernel moves bytes without a codec. A Server is the node's end, a Pool the gateway's.
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
//	Packhorse-Channel-Files: 2                (by a Unix socket, if the gateway accepts files)
//	<the credentials of a control call>
//
// The node answers with
//
//	HTTP/1.1 101 Switching Protocols
//	Connection: Upgrade
//	Upgrade: packhorse-channel/1
//	Packhorse-Channel: <name: 128 random bits, 32 lower-case hexadecimal digits>
//	Packhorse-Channel-Files: 2                (if the gateway has sent it, and the node passes files)
//
// With this last line, a descriptor of /dev/null comes with the first byte of the response (SCM_RIGHTS). If none
// arrives, there is a proxy between the two. Then the gateway closes the connection and tries again without files.
//
// From there on the connection is a channel. Any other status is a refusal with a sentence of text. 503 with
// Retry-After means that the node has too many channels or shuts down, 426 a request for another protocol. Wrong
// credentials get the same status as in a control call. The name is a secret between the two. It is bound to the caller
// whose credentials came with the request.
//
// # Transfers
//
// A channel carries one transfer after the other, numbered from 1. A control call names the channel and the number. The
// node claims them for the call's caller, and sends nothing before. A number can be claimed once.
//
// A transfer has two directions, which are independent except for the number. Each consists of headers of 24 bytes with
// big-endian integers. Fields that a type does not use are zero:
//
//	offset  size  field
//	     0     1  type: 'S' START, 'D' DATA, 'F' FILE, 'T' TAKEN, 'E' END
//	     1     1  status (END, TAKEN)
//	     2     2  bytes of message after the header (END, TAKEN; at most 1024)
//	     4     4  milliseconds to wait before the next try (END, TAKEN; 0: no advice)
//	     8     8  number of the transfer
//	    16     8  length in bytes (see below; at most 2^44)
//
//	START  begins a direction. Its length is the number of bytes in the direction, or 2^64-1 if unknown.
//	DATA   raw bytes follow, as many as its length, at least 1. Any number of DATA may follow each other.
//	END    ends the direction. Its length is the number of bytes in the direction. Status 0 means that it is
//	       complete. Any other status is the kind of failure (1 internal, 2 invalid, 3 not found, 4 denied,
//	       5 exhausted, 6 unavailable, 7 corrupt, 8 cancelled, 9 deadline, 10 exists), with a message for the caller.
//	FILE   stands for bytes of a regular file, as many as its length, at least 1, on a channel with files. The file's
//	       descriptor comes with the header's first byte (SCM_RIGHTS). The offset of the bytes in the file follows the
//	       header in 8 bytes.
//	TAKEN  is the gateway's report about a FILE: how many of its bytes it has sent. While the gateway sends the bytes
//	       from the file, it sends a TAKEN at least each second. The last one has the FILE's length, when the client's
//	       connection has accepted all, or a status if the file cannot be read. The node sends nothing before the
//	       last one. The gateway's direction carries nothing else.
//
// A direction without bytes is an END alone. Its side sends it only after it has read the other direction to its end.
// So the END of a receiver acknowledges its bytes.
//
// # Ends
//
// A channel can be used again only when each side has sent and received an END with status 0. It is closed by another
// status, a cancelled direction, the end of the connection, an invalid header, another transfer's number, unexpected
// bytes, or a limit. A direction without its END is incomplete, and no byte of one transfer can get into another.
//
// Limits: a peer that makes no progress within a time (Stall) is disconnected, and so is one that does not acknowledge.
// Waiting for a header has no limit during a transfer until the control call has reported that all was sent (Due).
// Either side closes an unused channel after a time (Idle), which is shorter at the gateway. So a gateway does not name
// a channel while the node closes it, and the channels of a gateway that was stopped or disconnected are closed soon.
// The node has a maximum number of channels (Max). If there are several callers, each gets at most three quarters of
// them.
package sidechannel

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/packhorse-git/packhorse/internal/transport/bulk"
)

// Path is where a node's port opens channels, by GET.
const Path = "/packhorse/channel"

const (
	protocol    = "packhorse-channel/1"
	nameHeader  = "Packhorse-Channel"
	fileHeader  = "Packhorse-Channel-Files"
	fileVersion = "2" // peers with another version exchange no files
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

// limits are the settings of both ends.
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
	net.Conn            // for Read and Write
	kernel   *bulk.Conn // the same, if the kernel can move bytes; nil: through TLS
	below    net.Conn   // the connection to close, without a TLS alert that could block
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

// userStep is the maximum size in bytes of a write with its own time limit.
const userStep = 64 << 10

// write writes all of p within the time limit, which is renewed with each step.
func (s *socket) write(p []byte, stall time.Duration) error {
	if s.kernel != nil {
		_, err := s.kernel.Write(p) // it has its own time limits
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
